"""Where main threads spend their time, by line of the user's code: ``train.py:138 DataLoader.__next__ 62 %``.

py-spy samples from outside without stopping the process (`--nonblocking`), waits included (`--idle`); 50 samples a second take 2 % of a
core. As root, `gputop.stacks.callers` adds the CUDA calls of each line.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

from msgspec import Struct

from gputop.stacks import callers, pyspy
from gputop.stacks.callers import CudaLine
from gputop.stacks.frames import Unreadable, Weighted, own_call, own_part, parse
from gputop.stacks.interpreter import Interpreter, is_beyond_py_spy
from gputop.stacks.layout import Torn
from gputop.stacks.permission import why_not
from gputop.stacks.pyspy import BEYOND_PY_SPY
from gputop.system import crash
from gputop.system.errors import NO_MORE_THREADS

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


class MainThread(Struct, frozen=True):
    """The main thread of one process over some seconds."""

    pid: int
    stacks: list[Weighted]
    cuda: list[CudaLine]  # CUDA calls by line, longest first
    no_cuda: str  # why the CUDA calls were not watched, with the remedy; empty if they were

    @property
    def shares(self) -> list[LineShare]:
        """Its samples by line of the user's code, most first."""
        return by_line(self.stacks)


def watch_main_threads(pids: Sequence[int], duration_s: float) -> tuple[list[MainThread], dict[int, str]]:
    """Watch the main threads of all ``pids`` at the same time; also returns pid -> why it has no sample."""
    import threading

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
            lines, missing = callers.watch_cuda_calls(pids, duration_s)
        except Exception as error:  # noqa: BLE001 - an error here must not cost the samples
            lines, missing = {}, dict.fromkeys(pids, crash.reason(error))
        cuda.update(lines)
        no_cuda.update(missing)

    work = [threading.Thread(target=sample_one, args=(pid,), daemon=True, name="sample") for pid in pids]
    work.append(threading.Thread(target=watch_cuda, daemon=True, name="callers"))
    started: list[threading.Thread] = []
    for thread in work:
        with suppress(RuntimeError):  # no more are allowed
            thread.start()
            started.append(thread)
    for thread in started:
        thread.join()
    if len(started) < len(work):
        failed.update((pid, NO_MORE_THREADS) for pid in pids if pid not in sampled and pid not in failed)
    return [MainThread(pid, sampled[pid], cuda.get(pid, []), no_cuda.get(pid, "")) for pid in pids if pid in sampled], failed
