"""Launching counts beside a GPU that rests: beside one that works, the queue is full."""

from __future__ import annotations

import pytest

from gputop.diagnosis.facts.launches import Launches
from gputop.findings import policy
from gputop.model.frame import MainSamples

MS = 1_000_000
TICK = 100 * MS
PID = 7


def told(launch_ms: list[float], watched_ms: int = 85) -> Launches:
    """A burst every fourth tick, of so much launching each."""
    launches, watched, launched = Launches(), 0, 0.0
    for i, ms in enumerate(launch_ms):
        watched, launched = watched + watched_ms, launched + ms
        launches.note((4 * i + 4) * TICK, [MainSamples(PID, watched * MS, launch_ns=round(launched * MS))])
    return launches


def busy(*pct: float) -> list[tuple[int, float]]:
    """Readings a tick apart, four to a burst."""
    return [(i * TICK + 3 * MS, value) for i, value in enumerate(pct)]


@pytest.mark.parametrize(
    ("launch_ms", "pct", "expected"),
    [
        ([20, 20], [90.0] * 10, pytest.approx(0.1)),  # works all the while
        ([20, 20], [10.0] * 10, pytest.approx(0.9)),
        ([20, 0], [100.0] * 6 + [0.0] * 6, 0.0),  # and rests in another burst, without launches
        ([0, 20], [100.0] * 6 + [0.0] * 6, 1.0),
        ([20, 60], [100.0] * 6 + [0.0] * 6, pytest.approx(0.75)),
        ([20, 20], [0.0] * 4 + [100.0] * 6, 0.0),  # the first one meets the beginning of work
        ([0, 0], [0.0] * 10, None),
        ([20, 20], [], None),
    ],
)
def test_by_what_the_gpu_does_meanwhile(launch_ms: list[float], pct: list[float], expected: float | None) -> None:
    assert told(launch_ms).idle_beside(PID, [busy(*pct)]) == expected


def test_several_gpus_count_alike() -> None:
    assert told([20]).idle_beside(PID, [busy(*[40.0] * 6), busy(*[20.0] * 6)]) == pytest.approx(0.7)


def test_what_a_key_frame_says_again_is_no_burst() -> None:
    launches = told([20])
    launches.note(10 * TICK, [MainSamples(PID, 85 * MS, launch_ns=20 * MS)])
    assert launches.idle_beside(PID, [busy(*[100.0] * 6, *[0.0] * 6)]) == 0.0


def test_nor_is_what_was_there_before_anybody_looked() -> None:
    launches = Launches()
    launches.note(4 * TICK, [MainSamples(PID, 2 * policy.BURST_SPAN_NS, launch_ns=policy.BURST_SPAN_NS)])
    assert launches.idle_beside(PID, [busy(*[0.0] * 6)]) is None


def test_old_bursts_and_who_is_gone_are_forgotten() -> None:
    launches = told([20, 60])
    launches.forget(5 * TICK, {PID})
    assert launches.idle_beside(PID, [busy(*[100.0] * 6, *[0.0] * 6)]) == 1.0
    launches.forget(5 * TICK, set())
    assert launches.idle_beside(PID, [busy(*[0.0] * 12)]) is None
