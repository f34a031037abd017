"""`EbpfSource`: has the probes loaded without holding up the beat, then reads their maps."""

from __future__ import annotations

import json
import os
import struct
import time

import msgspec

from gputop.model.frame import CudaCall, Frame, Probes, SourceState
from gputop.sources import FEW, Beat, Settings
from gputop.sources.ebpf import helper, loader
from gputop.sources.ebpf.budget import Linker, ProbeBudget
from gputop.sources.ebpf.cuda import Attacher, CudaReader
from gputop.sources.ebpf.helper import Helper, HelperFailed
from gputop.sources.ebpf.maps import Map, Shape, program_run_ns
from gputop.sources.ebpf.sched import Drain, SchedReader
from gputop.sources.ebpf.switches import SwitchAttacher, Switches
from gputop.sources.ebpf.wakes import Wakers
from gputop.sources.files import read_text
from gputop.system.privilege import capabilities
from gputop.system.program import FOLDER

PROBES = os.path.join(FOLDER, "probes")
SIZES = {
    "PAIRS": 8192, "WAKES": 8192, "HOT_THREADS": 4096, "DEAD_THREADS": 8192, "HOT_PROCESSES": 4096, "CALLS": 512, "INFLIGHT": 4096,
    "THREAD_CALLS": 2048,
}  # fmt: skip
"""Macro of probes/*.c -> entries of the map: 8 MB of kernel memory in all with `LEAST_THREADS`. A read costs by the size of the map."""
LEAST_THREADS, MOST_THREADS, THREADS_PER_CPU = 8192, 131072, 256  # entries of the map of threads, see `room_for_threads`
LOAD_AFTER_NS = 400_000_000  # ns from the first beat: compiling takes a CPU for a second, and the first screen comes first
READ_EVERY_NS = 200_000_000  # ns between two reads of the maps; they hold sums, so a longer pause loses nothing
CROWD_SLOTS = 2  # times this pause if there are more than `FEW` trainers and workers
LOST = ("threads", "dead", "histograms", "preempts", "wakeups", "calls", "inflight")
"""Maps with a report on their use, in the order of probes/common.h."""
_SETTINGS = struct.Struct("<IIII")  # value of the settings map


class EbpfSource:
    """Reads scheduling and CUDA calls by eBPF: `Frame.probes`."""

    name = "ebpf"

    def __init__(self, settings: Settings, sizes: dict[str, int] | None = None) -> None:
        self._settings = settings
        self._sizes = {"THREADS": room_for_threads(settings.root), **SIZES, **(sizes or {})}
        self._helper: Helper | None = None
        self._probes: LoadedProbes | None = None
        self._state = self._sent = SourceState(self.name, "partial", "the probes are being loaded")
        self._stride = max(1, READ_EVERY_NS // settings.interval_ns)
        self._load_due_ns = self._started_ns = 0
        self._ready_ms = 0
        self._wakers = Wakers()

    @property
    def wakers(self) -> frozenset[int]:
        """Processes that wake trainers without workers."""
        return self._wakers.pids

    @property
    def ready(self) -> bool:
        """True if loading has ended, with or without success: root is no longer needed."""
        return self._started_ns > 0 and self._helper is None

    def open(self) -> SourceState:
        """Check whether the probes can be loaded; `read` loads them. Raises Unavailable if that is certain to fail."""
        helper.check(self._settings.root, self._settings.sudo)
        return self._state

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add the contents of the maps, or report how loading went."""
        if not self._started_ns:
            self._begin_to_load(beat.t_ns)
        if self._helper is not None:
            self._receive(self._helper)
        slots = CROWD_SLOTS if len(beat.hot) > FEW and self._settings.interval_ns <= READ_EVERY_NS else 1
        if self._probes is not None and (beat.key or not beat.seq % (self._stride * slots)):
            try:
                frame.probes = self._probes.read(beat, slots)
                self._wakers.add(frame.probes.wakeups, beat.alone, beat.t_ns)
            except OSError as error:
                self._give_up(f"the kernel refuses to read the maps: {error.strerror}", "keep CAP_BPF")
        if self._probes is not None:
            self._state = self._describe(self._probes)
        if self._state != self._sent or beat.key:
            self._sent = self._state
            beat.changed.append(self._state)

    def close(self) -> None:
        """Detach everything."""
        if self._helper is not None:
            self._helper.close()
            self._helper = None
        if self._probes is not None:
            self._probes.close()
            self._probes = None

    def _begin_to_load(self, now: int) -> None:
        """Start the loader if it is due."""
        self._load_due_ns = self._load_due_ns or now + (LOAD_AFTER_NS if self._settings.interval_ns < LOAD_AFTER_NS else 0)
        if now < self._load_due_ns:
            return
        btf = os.path.join(self._settings.root, "sys/kernel/btf/vmlinux")
        request = json.dumps({"probes": PROBES, "btf": btf, "sizes": self._sizes})
        needs_sudo = self._settings.sudo and not helper.may_load(capabilities())
        self._started_ns = now
        try:
            self._helper = Helper(os.path.abspath(loader.__file__), request, sudo=needs_sudo)
        except HelperFailed as failure:
            self._give_up(f"the loader could not be started: {failure}", "gputop doctor")

    def _receive(self, helper: Helper) -> None:
        try:
            handed = helper.poll()
            if handed is None:
                return
            answer = msgspec.convert(handed[0], LoaderAnswer)
            if answer.error:
                self._fail(answer, helper.printed())
            else:
                self._ready_ms = (time.monotonic_ns() - self._started_ns) // 1_000_000
                interval_ns = self._settings.interval_ns * self._stride
                self._probes = LoadedProbes(answer, handed[1], interval_ns, self._settings.sudo, self._settings.root)
        except (HelperFailed, msgspec.ValidationError) as failure:
            self._give_up(f"the loader failed: {failure}", "gputop doctor")
        helper.close()
        self._helper = None

    def _fail(self, answer: LoaderAnswer, printed: str) -> None:
        remedy = helper.install_bcc(self._settings.root) if answer.remedy == loader.INSTALL_BCC else answer.remedy
        reason = answer.error if answer.remedy or not printed else f"{answer.error} ({printed})"
        self._give_up(reason, remedy or "gputop doctor")

    def _give_up(self, reason: str, remedy: str) -> None:
        self.close()
        self._state = SourceState(self.name, "unavailable", " ".join(reason.split())[:300], remedy)

    def _describe(self, probes: LoadedProbes) -> SourceState:
        """The state: ``ok``, or ``partial`` with what is missing."""
        detail = {"ready_ms": str(self._ready_ms), "tracepoints": "plain" if probes.answer.no_btf else "raw"}
        if probes.answer.no_btf:
            detail["waits"] = f"the calls that sleepers wait in are not known: {probes.answer.no_btf}"
        if probes.switches.share < 1.0:
            detail["switches"] = f"counted in {100 * probes.switches.share:.0f} % of the time: they are too many"
        if probes.switches.watch.refused:
            how = "not counted" if probes.switches.watch.seen.closed_ns else "counted without a budget"
            detail["switches"] = f"{how}: {probes.switches.watch.refused}"
        attacher = probes.attacher
        if attacher is None:
            return SourceState(self.name, "partial", "no CUDA calls: this kernel takes no uprobe programs", "Linux 5.15 or later", detail)
        detail["libcuda"] = str(len(attacher.libraries))
        if sampled := attacher.budget.sampled():
            detail["sampled"] = ", ".join(sampled)
        if attacher.budget.uncounted:
            detail["launches"] = f"not counted: {attacher.budget.uncounted}"
        if attacher.failures:
            path, why = next(iter(attacher.failures.items()))
            return SourceState(self.name, "partial", f"no CUDA calls of {path}: {why}", attacher.remedy(why), detail)
        return SourceState(self.name, "ok", detail=detail)


def room_for_threads(root: str) -> int:
    """Entries for threads: a power of two, at least twice the present threads (/proc/loadavg) and `THREADS_PER_CPU`."""
    running = read_text(root, "proc/loadavg").partition("/")[2].split()
    wanted = max(2 * int(running[0]) if running else 0, THREADS_PER_CPU * (os.cpu_count() or 1), LEAST_THREADS)
    return min(1 << (wanted - 1).bit_length(), MOST_THREADS)


class LoaderAnswer(msgspec.Struct):
    """The loader's answer; positions count the descriptors that come with it."""

    maps: dict[str, tuple[int, int, int, int]] = {}  # name -> position, key bytes, value bytes, entries
    programs: list[int] = []  # positions of cuda.c's three programs, empty if the kernel refuses them
    tracers: dict[str, int] = {}  # tracepoint -> position of sched.c's program
    links: list[int] = []  # positions of what holds them attached
    uprobes: str = ""  # how cuda.c's programs are attached, see `gputop.sources.ebpf.uprobe.attach`
    no_btf: str = ""  # why the plain tracepoints are used, empty if there is BTF
    error: str = ""
    remedy: str = ""


class LoadedProbes:
    """The loaded probes: maps, programs, links. They are attached as long as their descriptors are open."""

    def __init__(self, answer: LoaderAnswer, descriptors: list[int], interval_ns: int, sudo: bool, root: str) -> None:
        self.answer = answer
        self._maps = {name: Map(descriptors[at], Shape(*shape)) for name, (at, *shape) in answer.maps.items() if name != "alarms"}
        self._tracers = {name: descriptors[at] for name, at in answer.tracers.items()}
        links = [descriptors[at] for at in answer.links]
        self._descriptors = [descriptor for descriptor in descriptors if descriptor not in links]  # `SwitchAttacher` closes these
        proc = "" if answer.no_btf else os.path.join(root, "proc")
        watch = SwitchAttacher(Linker([], "", sudo), self._tracers, links, self._maps, proc)
        self.switches = Switches(SchedReader(self._maps, proc or "/proc"), watch, self._maps["slices"], proc)
        self.attacher: Attacher | None = None
        if answer.programs:
            linker = Linker([descriptors[at] for at in answer.programs], answer.uprobes, sudo)
            budget = ProbeBudget(linker, self._maps, descriptors[answer.maps["alarms"][0]])
            self.attacher = Attacher(budget, root)
            self._cuda = CudaReader(self._maps, budget)
        self._per_second = max(1, round(1e9 / interval_ns))
        self._epoch, self._slot, self._generation = 0, -1, 0
        self._hot: frozenset[int] = frozenset()
        self._looked_at: frozenset[int] = frozenset()
        self._lost: dict[str, int] = {}

    def read(self, beat: Beat, slots: int = 1) -> Probes:
        """Changes since the last read, ``slots`` usual pauses ago. Raises OSError if the kernel refuses the maps."""
        started = time.monotonic_ns()
        drain = self._begin_drain(started, beat, slots)
        probes = self.switches.read(drain)
        calls = self._read_cuda(drain, beat)
        slow = drain.key or drain.is_due(self._per_second)
        return msgspec.structs.replace(
            probes,
            calls=calls,
            thread_calls=self._cuda.thread_calls(drain) if self.attacher is not None else [],
            launches=self._cuda.launches(drain) if self.attacher is not None else [],
            map_used={name: self._maps[name].used for name in LOST} if slow else {},
            map_size={name: self._maps[name].shape.entries for name in LOST} if drain.key else {},
            lost=self._read_lost() if slow else {},
            run_ns=self._read_run_ns() if slow else None,
            drain_ns=time.monotonic_ns() - started,
        )

    def close(self) -> None:
        """Detach."""
        self.switches.close()
        if self.attacher is not None:
            self.attacher.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _begin_drain(self, now: int, beat: Beat, slots: int) -> Drain:
        """End the epoch of the maxima, and set for the programs which processes to follow closely."""
        number, self._epoch = self._epoch, self._epoch + 1
        self._slot += slots
        if beat.hot != self._hot:
            self._follow(beat.hot)
        second = (self._slot + 1) // self._per_second
        self._maps["settings"].put(0, _SETTINGS.pack(self._epoch & 0xFFFFFFFF, self._generation, len(self._hot), second))
        return Drain(now=now, number=number, slot=self._slot, slots=slots, per_second=self._per_second, hot=beat.hot, key=beat.key)

    def _follow(self, hot: frozenset[int]) -> None:
        table = self._maps["hot"]
        table.delete(self._hot - hot)
        for pid in sorted(hot - self._hot)[: table.shape.entries]:
            table.put(pid, b"\1")
        self._hot, self._generation = hot, self._generation + 1

    def _read_cuda(self, drain: Drain, beat: Beat) -> list[CudaCall]:
        if self.attacher is None:
            return []
        pids = beat.hot | beat.gpu_pids
        if pids and (drain.is_due(self._per_second) or pids != self._looked_at):
            self._looked_at = pids
            self.attacher.look(pids, beat.gpu_pids)
        return self._cuda.read(drain)

    def _read_lost(self) -> dict[str, int]:
        table = self._maps["lost"]
        for position, name in enumerate(LOST):
            count = int.from_bytes(table.get(position), "little")
            if count:
                self._lost[name] = count
        return dict(self._lost)

    def _read_run_ns(self) -> int | None:
        """CPU time of the programs, None if kernel.bpf_stats_enabled is off."""
        return sum(program_run_ns(fd) for fd in self._tracers.values()) or None
