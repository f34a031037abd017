"""A labelled run: recorded from real processes, made neutral, and kept as one small file with its label.

A file is an xz of msgpack: a `Run`. Both modes stand in it, for what they have in common costs nothing twice. The frames are columns
(`gputop.recording.columns`) in one piece. Measured on three runs of 13 s: 38 KB each. Two common recordings, with histograms and
all processes of the machine, would take 124 KB; one archive of all runs 5 % less, but it would have to be replaced whole.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gputop.doctor.mask import Mask
from gputop.model.frame import Frame, Header, Probes, ProcInfo, SchedThread
from gputop.recording import columns
from gputop.recording.chunks import Decoder
from tests.corpus import calm
from tests.wait import PATIENCE_S
from tests.workloads import runner, scenarios, simgpu
from tests.workloads.environment import ROOT
from tests.workloads.scenario import Label

MODES: dict[str, list[str]] = {"eBPF": [], "/proc": ["--no-ebpf"]}  # name -> the collector's flags
BEFORE_S = 3.0  # s of training before the disturbance
ONSET_S = 3.0  # s from the onset on until a window lies in the disturbed state as a whole
QUIET_S = 0.1  # CPU seconds of a process outside the workload that is left out
_encode = msgspec.msgpack.Encoder().encode
_FOLDER = re.compile(rf"{re.escape(tempfile.gettempdir())}/gputop-[\w-]+")
_PLACES = ((sys.prefix, "/home/me/venv"), (str(ROOT), "/home/me/gputop"), (sys.base_prefix, "/usr"), (os.path.expanduser("~"), "/home/me"))


class Run(msgspec.Struct):
    """One run of a workload, seen by one collector in each mode."""

    workload: str
    symptom: str
    cause: str
    culprits: dict[int, tuple[str, float]]  # pid -> name, and CPU seconds from the onset to the end
    blames: list[str]  # names of the label's culprits
    family: list[int]  # pids of the workload before the onset
    streams: dict[str, tuple[Header, bytes]]  # mode -> header, frames as columns
    onset_ns: int | None = None  # CLOCK_MONOTONIC; None: not known
    ended_ns: int = 0  # when the disturbance ended
    runner_pid: int = 0
    others_cpus: float = 0.0  # CPUs that processes outside the workload took after the onset
    definition: str = ""  # see `definition`
    beside: str = ""  # see `Label.beside`
    lost: float | None = None
    """Share of the time from ``logged_ns`` to the end in which the simulated GPU that did least did nothing, by its own log."""
    logged_ns: int = 0

    @property
    def label(self) -> Label:
        """The verdict that the run should get."""
        return Label(self.symptom, self.cause, frozenset(self.blames), self.beside)

    def items(self, mode: str) -> list[Header | Frame]:
        """The header and the frames that the collector wrote in a mode."""
        header, packed = self.streams[mode]
        return [header, *columns.ColumnDecoder().decode(packed)]


_decode = msgspec.msgpack.Decoder(Run).decode


def definition(name: str, seconds: float) -> str:
    """A hash of the workload's file, of the scenarios that it imports, and of the run's length: a run of another hash is out of date."""
    [folder] = scenarios.__path__
    todo, seen = [name.replace("-", "_")], dict[str, str]()
    while todo:
        if (module := todo.pop()) not in seen:
            seen[module] = Path(folder, f"{module}.py").read_text()
            todo += re.findall(r"tests\.workloads\.scenarios\.(\w+)", seen[module])
    return hashlib.sha256(repr((sorted(seen.items()), seconds)).encode()).hexdigest()[:16]


def record(name: str, seconds: float, modes: dict[str, list[str]], after_s: float = 0.0) -> Run:
    """Run the workload once beside a collector for each of ``modes`` (name -> flags), ``seconds`` from the onset on.

    The recordings go on for ``after_s`` when the disturbance is over. Raises `NotReady`.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gputop-run-")))
        running = stack.enter_context(runner.started(name, BEFORE_S + seconds + after_s))
        family = sorted(runner.descendants([os.getpid()]))
        collecting = stack.enter_context(ExitStack())
        files = {mode: folder / str(number) for number, mode in enumerate(modes)}
        for mode, flags in modes.items():
            collecting.enter_context(_collecting(running, flags, files[mode]))
        if running.scenario.disturb is not None:
            time.sleep(BEFORE_S)
        with running.disturbed():
            others = calm.Meter()
            time.sleep(min(ONSET_S, seconds / 2))
            log = _GpuLog(running)
            time.sleep(max(seconds - ONSET_S, seconds / 2))
            lost = log.lost()
            ended_ns, others_cpus = time.monotonic_ns(), others.cpus()
        time.sleep(after_s)
        collecting.close()
        label = running.scenario.label
        return Run(
            workload=name, symptom=label.symptom, cause=label.cause, blames=sorted(label.culprits), family=family,
            culprits={pid: (who, running.culprit_cpu_s.get(pid, 0.0)) for pid, who in running.culprits.items()},
            streams={mode: _stream(path, ended_ns + int(after_s * 1e9)) for mode, path in files.items()},
            onset_ns=running.onset_ns, ended_ns=ended_ns, runner_pid=os.getpid(), others_cpus=round(others_cpus, 2), beside=label.beside,
            lost=round(lost, 3), logged_ns=log.began_ns,
        )  # fmt: skip


class _GpuLog:
    """What the simulated GPUs have done from now on, by their own account."""

    def __init__(self, running: runner.Running) -> None:
        host = simgpu.attach(running.folder / "simgpu")
        self._gpus, self.began_ns = host.dev[: host.devices], time.monotonic_ns()
        self._before = [gpu.busy_ns() for gpu in self._gpus]

    def lost(self) -> float:
        """Share of the time in which the GPU that did least did nothing."""
        passed_ns = time.monotonic_ns() - self.began_ns
        least_ns = min(gpu.busy_ns() - before for gpu, before in zip(self._gpus, self._before, strict=True))
        return 1.0 - min(1.0, max(0.0, least_ns / passed_ns))


def _stream(path: Path, until_ns: int) -> tuple[Header, bytes]:
    header, *rest = Decoder().feed(path.read_bytes())
    assert isinstance(header, Header)
    return header, columns.ColumnEncoder().encode([one for one in rest if isinstance(one, Frame) and one.t_ns <= until_ns])


@contextmanager
def _collecting(running: runner.Running, flags: list[str], path: Path) -> Iterator[None]:
    """A collector that writes to ``path``, from its first frame on until the context ends."""
    with path.open("wb") as out:
        command = [sys.executable, "-m", "gputop", "collect", *flags]
        collector = subprocess.Popen(command, env=running.env, stdout=out, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while path.stat().st_size < 4096 and time.monotonic() < deadline and collector.poll() is None:
                time.sleep(0.02)
            yield
            if collector.poll() is not None:
                raise runner.NotReady(f"{running.name}: the collector ended by itself")
        finally:
            collector.terminate()
            try:
                collector.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                collector.kill()
                collector.wait()


def save(run: Run, path: Path) -> None:
    """Write a run; half a file is never seen under its name."""
    part = path.with_suffix(".part")
    part.write_bytes(lzma.compress(_encode(run), preset=9 | lzma.PRESET_EXTREME))
    part.replace(path)


def load(path: Path) -> Run:
    """What `save` wrote, or a recording of `gputop record` with its label (`tests.device.labels.KEPT`)."""
    if path.suffix == ".gputop":
        return _kept(path)
    return _decode(lzma.decompress(path.read_bytes()))


def _kept(path: Path) -> Run:
    from tests.device.labels import KEPT

    symptom, cause = KEPT[path.stem]
    header, packed = _stream(path, 1 << 63)
    pids = {
        info.pid for frame in columns.ColumnDecoder().decode(packed) for info in frame.infos if info.cmdline[-1:] == ["/home/me/train.py"]
    }
    mode = "/proc" if path.stem.startswith("unprobed-") else "eBPF"
    return Run(path.stem, symptom, cause, {}, [], sorted(pids), {mode: (header, packed)})


def neutral(run: Run) -> Run:
    """The run without names of this machine and of programs outside the workload, and without those that hardly run.

    The collector of the other mode is left out, too, and so are the run queue's histograms, a seventh of the bytes that no rule reads.
    """
    mask, collectors = Mask(), {header.collector_pid for header, _ in run.streams.values()}
    streams = {}
    for mode, (header, packed) in run.streams.items():
        frames = columns.ColumnDecoder().decode(packed)
        ours = _below(run.runner_pid, frames) - {run.runner_pid} - collectors | {header.collector_pid} | set(run.culprits) | set(run.family)
        quiet = _quiet(frames) - ours | collectors - {header.collector_pid}
        names = {info.comm for frame in frames for info in frame.infos if info.pid in ours}
        plain = [_named(mask.frame(one), one, ours, names) for one in (_without(frame, quiet) for frame in frames)]
        header = replace(mask.header(header), kernel=header.kernel.partition("-")[0])
        streams[mode] = header, columns.ColumnEncoder().encode(plain)
    return msgspec.structs.replace(run, streams=streams)


def _below(root: int, frames: list[Frame]) -> set[int]:
    """``root`` and its descendants."""
    found, pairs = {root}, {(info.ppid, info.pid) for frame in frames for info in frame.infos}
    while more := {pid for ppid, pid in pairs if ppid in found} - found:
        found |= more
    return found


def _quiet(frames: list[Frame]) -> set[int]:
    """Processes that took less than `QUIET_S`."""
    first: dict[int, int] = {}
    took: dict[int, int] = {}
    for frame in frames:
        for proc in frame.procs:
            used_ns = proc.utime_ns + proc.stime_ns
            took[proc.pid] = used_ns - first.setdefault(proc.pid, used_ns)
    pids = {info.pid for frame in frames for info in frame.infos} | set(took)
    return {pid for pid in pids if took.get(pid, 0) < QUIET_S * 1e9}


def _without(frame: Frame, quiet: set[int]) -> Frame:
    probes = frame.probes
    return replace(
        frame, procs=[one for one in frame.procs if one.pid not in quiet], infos=[one for one in frame.infos if one.pid not in quiet],
        gone=[pid for pid in frame.gone if pid not in quiet], probes=None if probes is None else _probed(probes, quiet),
    )  # fmt: skip


def _probed(probes: Probes, quiet: set[int]) -> Probes:
    return replace(
        probes, threads=[replace(one, hist={}) for one in probes.threads if one.pid not in quiet],
        preempts=[one for one in probes.preempts if one.culprit_pid not in quiet],
        wakeups=[one for one in probes.wakeups if one.waker_pid not in quiet],
    )  # fmt: skip


def _named(masked: Frame, frame: Frame, ours: set[int], names: set[str]) -> Frame:
    """The masked frame with the workload's own names. A thread that was gone before /proc was read has one if the workload uses it."""
    probes = masked.probes
    if probes is not None and frame.probes is not None:
        threads = [_thread(*both, ours, names) for both in zip(probes.threads, frame.probes.threads, strict=True)]
        probes = replace(probes, threads=threads)
    infos = [_info(*both) if both[0].pid in ours else both[0] for both in zip(masked.infos, frame.infos, strict=True)]
    return replace(masked, infos=infos, probes=probes)


def _thread(masked: SchedThread, thread: SchedThread, ours: set[int], names: set[str]) -> SchedThread:
    return replace(masked, comm=thread.comm) if thread.pid in ours or thread.comm in names else masked


def _info(masked: ProcInfo, info: ProcInfo) -> ProcInfo:
    return replace(masked, comm=info.comm, cmdline=[_place(text) for text in info.cmdline], exe=_place(info.exe), threads=info.threads)


def _place(text: str) -> str:
    text = _FOLDER.sub("/home/me/run", text)
    for place, plain in _PLACES:
        text = text.replace(place, plain)
    return text
