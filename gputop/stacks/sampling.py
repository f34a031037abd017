"""Samples where main threads spend their time, by line of the user's code: ``train.py:138 DataLoader.__next__ 62 %``.

py-spy samples from outside without stopping the process (`--nonblocking`), waits included (`--idle`); 50 samples a second take 2 % of a
core. As root, probes/callers.c adds the CUDA synchronize and memcpy calls of each line, each with its Python frames, so that short calls,
too, belong to their line.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from msgspec import Struct, field

from gputop.model import histogram
from gputop.sources import elf
from gputop.sources.ebpf import libcuda
from gputop.stacks import on_demand, pyspy
from gputop.stacks.frames import Line, Unreadable, Weighted, own_call, own_part, parse
from gputop.stacks.interpreter import Interpreter, is_beyond_py_spy
from gputop.stacks.layout import Torn
from gputop.stacks.permission import why_not
from gputop.stacks.pyspy import BEYOND_PY_SPY
from gputop.system import crash
from gputop.system.errors import NO_MORE_THREADS, Unavailable, start_thread

RATE_HZ = 50  # samples a second
_MOST_TEXT = 16 << 20  # characters of distinct stacks: mostly there are some dozen of 5,000
_START_S = 5.0  # s that py-spy may take beyond the sampling, to attach and to write its result


class LineShare(Struct, frozen=True):
    """One line of the user's code with its share of the samples; ``call``: the function that it had called."""

    place: str  # ``train.py:138``
    file: str
    line: int
    function: str
    call: str
    share: float  # 0 to 1
    samples: int


def sample(pid: int, duration_s: float, rate_hz: int = RATE_HZ) -> list[Weighted]:
    """Stacks of the main thread with their number of samples, frames outermost first. Raises `Unreadable`."""
    if is_beyond_py_spy(pid):
        return sample_by_memory(pid, duration_s, rate_hz)
    try:
        return _sample_by_py_spy(pid, duration_s, rate_hz)
    except Unreadable as error:
        if error.kind not in BEYOND_PY_SPY:
            raise
    return sample_by_memory(pid, duration_s, rate_hz)


def sample_by_memory(pid: int, duration_s: float, rate_hz: int = RATE_HZ) -> list[Weighted]:
    """`sample` for interpreters that py-spy cannot read; 0.2 ms of CPU a sample. A sample that changed while it was read is left out."""
    counts: Counter[tuple[str, ...]] = Counter()
    room = _MOST_TEXT
    with Interpreter(pid) as python:
        python.main_thread()
        began = time.monotonic()
        for number in range(max(1, round(duration_s * rate_hz))):
            time.sleep(max(0.0, began + number / rate_hz - time.monotonic()))
            if time.monotonic() > began + duration_s:
                break
            try:
                frames = tuple(line.text for line in reversed(python.main_frames()))
            except Torn:
                continue
            if frames not in counts:
                room -= sum(map(len, frames))
            if frames in counts or room > 0:
                counts[frames] += 1
    return [(frames, count) for frames, count in counts.items() if frames]


def _sample_by_py_spy(pid: int, duration_s: float, rate_hz: int) -> list[Weighted]:
    arguments = ["record", "--format", "raw", "--output", "/proc/self/fd/1", "--duration", str(max(1, round(duration_s)))]
    arguments += ["--rate", str(rate_hz), "--nonblocking", "--idle", "--threads", "--full-filenames"]
    try:
        output = pyspy.run(pid, arguments, time.monotonic() + duration_s + _START_S)
    except Unreadable as error:
        if error.kind == "permission":
            raise Unreadable(error.kind, why_not(pid)) from error
        raise
    return parse_raw(output.decode("utf-8", "replace").splitlines(), pid)


def parse_raw(lines: Iterable[str], pid: int) -> list[Weighted]:
    """The main thread's stacks in py-spy's raw format, without the frame that names the thread."""
    found: list[Weighted] = []
    for line in lines:
        stack, _, count = line.rstrip("\n").rpartition(" ")
        thread, *frames = stack.split(";")
        if count.isdigit() and frames and (thread.startswith(f"thread ({pid})") or thread.endswith("MainThread")):
            found.append((tuple(frames), int(count)))
    return found


def by_line(weighted: Iterable[Weighted]) -> list[LineShare]:
    """Samples summed by the innermost line of the user's code and the function that it called, most first."""
    counts: Counter[tuple[str, int, str, str]] = Counter()
    for frames, weight in weighted:
        lines = own_part([parse(frame) for frame in reversed(frames)])
        own, call = own_call(lines)
        at = own or lines[0]
        counts[at.file, at.line, at.name, call] += weight
    total = sum(counts.values())
    return [
        LineShare(f"{file.rpartition('/')[2]}:{line}", file, line, name, call, count / total, count)
        for (file, line, name, call), count in counts.most_common()
    ]


MOST_LIBRARIES = 16  # distinct libcudas probed at once
_NO_LINE = Line("unknown line", "", 0)  # the code object was freed before it was read


class CudaLine(Struct, frozen=True):
    """One line of the user's code and one CUDA function called from it. Times in ns."""

    place: str  # ``train.py:57``
    file: str
    line: int
    function: str
    via: str  # the Python function that the line called and that made the CUDA call; empty for a C function, which has no frame
    inside: str  # the library's line that made the call: ``Trainer._log transformers/trainer.py:2507``; empty if the user's line did
    call: str  # ``cuStreamSynchronize``
    share: float  # share of the watched time, 0 to 1
    calls: int  # calls that returned; one that still lasts counts in the share only
    total_ns: int
    p99_ns: float | None
    max_ns: int


class _Sum(Struct):
    calls: int = 0
    total_ns: int = 0
    max_ns: int = 0
    hist: Counter[int] = field(default_factory=Counter)


class _SamplingAnswer(on_demand.HelperAnswer):
    rows: list[tuple[int, int, int, int, int, dict[int, int], list[tuple[int, int]]]] = []


def watch_cuda_calls(pids: Sequence[int], duration_s: float, root: str = "/") -> tuple[dict[int, list[CudaLine]], dict[int, str]]:
    """pid -> its lines over ``duration_s``, longest first; and pid -> why it has none, with the remedy."""
    with ExitStack() as files:
        watched = _Watched(root, files)
        for pid in pids:
            watched.add(pid)
        if watched.readers:
            as_root = f"{' '.join(map(str, pids))} --duration {duration_s:.0f}"
            request = {"readers": watched.readers, "libraries": list(watched.libraries.items())}
            try:
                answer = on_demand.run_probe(
                    "callers", request, duration_s, form=_SamplingAnswer, as_root=as_root, root=root, files=tuple(watched.libraries)
                )
            except Unavailable as error:
                missing = f"{error.reason}; {error.remedy}" if error.remedy else error.reason
                return {}, watched.failed | dict.fromkeys(watched.readers, missing)
            for pid in watched.readers:
                watched.resolve(pid, answer)
    return watched.lines, watched.failed


class _Watched:
    """The request to the probe, and the result of each process."""

    def __init__(self, root: str, files: ExitStack) -> None:
        self.readers: dict[int, tuple[int, ...]] = {}
        self.libraries: dict[int, dict[int, int]] = {}  # descriptor -> {offset of a function: index in ``names``}
        self.names: list[str] = []
        self.lines: dict[int, list[CudaLine]] = {}
        self.failed: dict[int, str] = {}
        self._root = root
        self._files = files
        self._known: set[tuple[int, ...]] = set()

    def add(self, pid: int) -> None:
        """Find the libcuda of a process, and where its interpreter keeps the main thread's frames."""
        try:
            self._add_libraries(pid)
            self.readers[pid] = _reader(pid, self._root)
        except Unreadable as error:
            self.failed[pid] = why_not(pid, self._root) if error.kind == "permission" else error.reason
        except (OSError, libcuda.NoFunctions) as error:
            self.failed[pid] = f"its libcuda cannot be read: {error}"

    def resolve(self, pid: int, answer: _SamplingAnswer) -> None:
        """Turn the answer's addresses into lines; the process must still live."""
        try:
            self.lines[pid] = _lines(pid, answer, self.names, self._root)
        except Unreadable as error:
            self.failed[pid] = error.reason

    def _add_libraries(self, pid: int) -> None:
        found = libcuda.find(pid, self._root)
        if not found:
            raise Unreadable("no-cuda", "it has no libcuda, and makes none")
        for one in found:
            file = self._files.enter_context(libcuda.opened(pid, one, self._root))
            if (facts := elf.facts(file)) in self._known:
                continue
            if len(self._known) >= MOST_LIBRARIES:
                raise Unreadable("no-cuda", f"{MOST_LIBRARIES} other libcudas are watched already")
            functions = libcuda.points(file).functions
            self._known.add(facts)
            self.names += sorted({function.call for function in functions} - set(self.names))
            self.libraries[file.fileno()] = {function.offset: self.names.index(function.call) for function in functions}


def _reader(pid: int, root: str) -> tuple[int, ...]:
    """The numbers of `struct reader` for its main thread. Raises `Unreadable`."""
    with Interpreter(pid, root) as python:
        at, thread = python.layout, python.main_thread()
        hop = max(at.hop, 0)
        return thread.address + at.frame, at.instruction_mask, int(at.hop >= 0), hop, at.back, at.code, at.instruction


def _lines(pid: int, answer: _SamplingAnswer, names: list[str], root: str) -> list[CudaLine]:
    """Raises `Unreadable`."""
    sums: dict[tuple[Line, str, str, str], _Sum] = {}
    with Interpreter(pid, root) as python:
        for who, call, count, total, longest, hist, frames in answer.rows:
            if who == pid:
                _add(sums.setdefault((*_made_by(python, frames), names[call]), _Sum()), count, total, longest, hist)
    lines = [_line(own, via, inside, call, one, answer.seconds) for (own, via, inside, call), one in sums.items()]
    return sorted(lines, key=lambda one: -one.total_ns)


def _made_by(python: Interpreter, frames: list[tuple[int, int]]) -> tuple[Line, str, str]:
    """The innermost line of the user's code, the function that it called, and the innermost frame if that is another."""
    try:
        lines = python.lines(frames)
    except Torn:
        lines = []
    if not lines:
        return _NO_LINE, "", ""
    own, via = own_call(lines)
    inside = "" if own in (None, lines[0]) else f"{lines[0].name} {lines[0].short_file}:{lines[0].line}"
    return own or lines[0], via, inside


def _add(one: _Sum, count: int, total_ns: int, longest_ns: int, hist: dict[int, int]) -> None:
    one.calls += count
    one.total_ns += total_ns
    one.max_ns = max(one.max_ns, longest_ns)
    one.hist.update({histogram.FIRST + bucket: calls for bucket, calls in hist.items()})


def _line(own: Line, via: str, inside: str, call: str, one: _Sum, seconds: float) -> CudaLine:
    p99 = histogram.quantile(one.hist, 0.99, max_ns=one.max_ns)
    share = min(1.0, one.total_ns / 1e9 / seconds)
    return CudaLine(own.place, own.file, own.line, own.name, via, inside, call, share, one.calls, one.total_ns, p99, one.max_ns)


class MainThread(Struct, frozen=True):
    """The main thread of one process over some seconds."""

    pid: int
    stacks: list[Weighted]
    cuda: list[CudaLine]  # CUDA calls by line, longest first
    no_cuda: str  # why the CUDA calls were not watched, with the remedy; empty if they were

    @property
    def shares(self) -> list[LineShare]:
        """Share of the samples of each line of the user's code, largest first."""
        return by_line(self.stacks)


def watch_main_threads(pids: Sequence[int], duration_s: float) -> tuple[list[MainThread], dict[int, str]]:
    """Watch the main threads of all ``pids`` at the same time; also returns pid -> why it has no sample."""
    sampled: dict[int, list[Weighted]] = {}
    failed: dict[int, str] = {}
    cuda: dict[int, list[CudaLine]] = {}
    no_cuda: dict[int, str] = {}

    def sample_one(pid: int) -> None:
        try:
            sampled[pid] = sample(pid, duration_s)
        except Unreadable as error:
            failed[pid] = error.reason
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are sampled
            failed[pid] = f"could not be sampled: {crash.reason(error)}"
        if not sampled.get(pid, True):
            del sampled[pid]
            failed[pid] = "no sample of its main thread"

    def watch_cuda() -> None:
        try:
            lines, missing = watch_cuda_calls(pids, duration_s)
        except Exception as error:  # noqa: BLE001 - an error here must not cost the samples
            lines, missing = {}, dict.fromkeys(pids, crash.reason(error))
        cuda.update(lines)
        no_cuda.update(missing)

    threads = [*(start_thread(sample_one, "sample", pid) for pid in pids), start_thread(watch_cuda, "callers")]
    for thread in filter(None, threads):
        thread.join()
    if None in threads:
        failed.update((pid, NO_MORE_THREADS) for pid in pids if pid not in sampled and pid not in failed)
    return [MainThread(pid, sampled[pid], cuda.get(pid, []), no_cuda.get(pid, "")) for pid in pids if pid in sampled], failed
