"""Where the main thread's time goes, by line of the user's own code: ``train.py:138 DataLoader.__next__ 62 %``.

py-spy samples from outside without stopping the process (`--nonblocking`), waits included (`--idle`); 50 samples a second took
2 % of a core.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from gputop.stacks import pyspy
from gputop.stacks.folded import Weighted
from gputop.stacks.frames import own_call
from gputop.stacks.frames import own_part
from gputop.stacks.frames import parse
from gputop.stacks.permission import why_not
from gputop.stacks.pyspy import Unreadable

RATE_HZ = 50
_START_S = 5.0
"""What py-spy may take beyond the sampling itself: finding its way into the process, writing the result."""


@dataclass(frozen=True, slots=True)
class LineShare:
    """One line of the user's code with the share of samples in which the thread was in it, ``call`` being what it had called."""

    place: str
    """``train.py:138``, with its path where known in ``file``."""
    file: str
    line: int
    function: str
    call: str
    share: float
    """0 to 1."""
    samples: int


def sample(pid: int, duration_s: float, rate_hz: int = RATE_HZ) -> list[Weighted]:
    """Stacks of the main thread of ``pid``, outermost first, with how many of the samples had them. Raises `Unreadable`."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gputop-") as folder:
        path = f"{folder}/samples"
        arguments = ["record", "--pid", str(pid), "--format", "raw", "--output", path, "--duration", str(max(1, round(duration_s)))]
        arguments += ["--rate", str(rate_hz), "--nonblocking", "--idle", "--threads", "--full-filenames"]
        status, _, errors = pyspy.run(arguments, time.monotonic() + duration_s + _START_S)
        if status != 0:
            raise _explained(pid, errors)
        with open(path, encoding="utf-8", errors="replace") as file:
            return parse_raw(file, pid)


def sample_all(pids: Sequence[int], duration_s: float) -> tuple[dict[int, list[Weighted]], dict[int, str]]:
    """Several processes at the same time: their samples, and why the others have none."""
    import threading

    sampled: dict[int, list[Weighted]] = {}
    failed: dict[int, str] = {}

    def work(pid: int) -> None:
        try:
            sampled[pid] = sample(pid, duration_s)
        except Unreadable as error:
            failed[pid] = error.reason
        if not sampled.get(pid, True):
            del sampled[pid]
            failed[pid] = "no sample of its main thread"

    threads = [threading.Thread(target=work, args=(pid,), daemon=True, name="sample") for pid in pids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {pid: sampled[pid] for pid in pids if pid in sampled}, failed


def _explained(pid: int, errors: str) -> Unreadable:
    error = pyspy.explain(errors)
    return Unreadable(error.kind, why_not(pid)) if error.kind == "permission" else error


def parse_raw(lines: Iterable[str], pid: int) -> list[Weighted]:
    """The main thread's lines of py-spy's raw format, without the frame that names the thread."""
    found: list[Weighted] = []
    for line in lines:
        stack, _, count = line.rstrip("\n").rpartition(" ")
        thread, *frames = stack.split(";")
        if count.isdigit() and frames and (thread.startswith(f"thread ({pid})") or thread.endswith("MainThread")):
            found.append((tuple(frames), int(count)))
    return found


def by_line(weighted: Iterable[Weighted]) -> list[LineShare]:
    """Samples summed by the innermost line of the user's own code and what it called, most first."""
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
