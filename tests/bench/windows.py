"""What counting context switches costs a job that makes very many: steps lost in the windows in which they are counted, and in all.

Each window is compared with the pause before it, in units of a loop that the job runs between its steps (`tests.bench.watching`): the
machine's speed changes little in a second. What is lost in all is the windows' loss times their share of the time. Needs root, bcc and a
C compiler.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple
from unittest.mock import patch

from gputop.model.frame import Frame
from gputop.sources import Beat, Settings
from gputop.sources.ebpf.source import EbpfSource
from gputop.sources.ebpf.switches import SwitchAttacher
from tests.bench.figures import spread, table
from tests.bench.watching import Job, Scene, job

SCENES = (
    Scene("two threads over a pipe, 20,000/s", "pipe", 20_000),
    Scene("the same, 100,000/s", "pipe", 100_000),
    Scene("two threads at a futex, 100,000/s", "futex", 100_000),
    Scene("sched_yield all the time", "yield", 1_000_000),
    Scene("16 threads pass a byte on, on all CPUs", "ring", 200_000),
)


class Told(NamedTuple):
    """The job's counters at one moment."""

    what: str
    t_s: float
    counters: tuple[int, ...]


class Listening(SwitchAttacher):
    """A watch that tells the job's counters around its windows."""

    running: Job
    told: list[Told]
    per_s: list[float]  # switches of the busiest CPU in each window

    def _tell(self, what: str) -> None:
        self.told.append(Told(what, time.monotonic(), self.running.counters()))

    def _attach(self, hot: frozenset[int]) -> bool:
        self._tell("paused")
        attached = super()._attach(hot)
        self._tell("opened")
        return attached

    def _close_window(self, hot: frozenset[int]) -> None:
        self._tell("closing")
        super()._close_window(hot)
        self.per_s.append(self.seen.per_s)
        self._tell("closed")


def losses(scene: Scene, seconds: float) -> tuple[list[float], float]:
    """(per cent of the steps lost in each window, share of the time that windows take)."""
    with job(scene) as running, patch("gputop.sources.ebpf.source.SwitchAttacher", Listening):
        Listening.running, Listening.told, Listening.per_s = running, [], []
        source = EbpfSource(Settings())
        source.open()
        end = time.monotonic() + seconds
        for seq in range(1 << 30):
            frame = Frame(seq, time.monotonic_ns(), key=seq % 100 == 0)
            source.read(Beat(frame.t_ns, seq, frame.key, hot=frozenset({running.pid})), frame)
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        source.close()
    told, lost, inside, in_all = Listening.told, list[float](), 0.0, 0.0
    for at in range(len(told) - 4):
        begun, paused, opened, closing, closed = told[at : at + 5]
        if [one.what for one in told[at : at + 5]] == ["closed", "paused", "opened", "closing", "closed"]:
            without, beside = _cost(begun, paused), _cost(opened, closing)
            if without and beside:
                lost.append(100 * (1 - without / beside))
            inside, in_all = inside + closed.t_s - paused.t_s, in_all + closed.t_s - begun.t_s
    return lost, inside / in_all if in_all else 1.0


def _cost(older: Told, newer: Told) -> float:
    """CPU time of a turn in spins; 0 where the job had no CPU for either."""
    turns, turns_ns, spins, spins_ns = (new - old for new, old in zip(newer.counters, older.counters, strict=True))
    return turns_ns / turns / (spins_ns / spins) if turns and spins_ns else 0.0


def rows(seconds: float = 30.0) -> Iterator[list[str]]:
    """Job, loss in windows, their share, loss in all."""
    for scene in SCENES:
        lost, share = losses(scene, seconds)
        if lost:
            per_s = f"{statistics.median(Listening.per_s):,.0f}"
            yield [scene.title, per_s, spread(lost, 1), f"{100 * share:.1f}", f"{statistics.mean(lost) * share:.2f}"]
        else:
            yield [scene.title, "few", "no windows", "100", ""]


def report(seconds: float = 30.0) -> Iterator[str]:
    """The table."""
    yield f"## Steps lost to the counting of context switches ({seconds:.0f} s each; windows against the pauses before them)"
    head = ["job", "switches/s of the busiest CPU", "lost in windows, % (min/median/max)", "windows, % of the time", "lost in all, %"]
    yield table(head, list(rows(seconds)))


if __name__ == "__main__":
    for paragraph in report():
        print(paragraph, end="\n\n", flush=True)
