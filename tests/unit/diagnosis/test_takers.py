"""How much of the CPUs those take that are read seldom."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.test_engine import contended


@pytest.mark.parametrize("rested_s", [3, 9, 27])
def test_what_who_has_just_woken_takes_is_known_within_three_seconds(rested_s: int):
    """And no mean over its rest: that would be three hundredths of a CPU."""
    scene = contended()
    hog = scene.procs[900]
    hog.run = 0.0
    for second in range(2 * rested_s):
        frame = scene.next_frame(0.5)
        if second:
            frame.procs = [sample for sample in frame.procs if sample.pid != 900]
        scene.board.fold(frame)
        scene.engine.feed(scene.board)
    hog.run = 0.7
    scene.play(3, 1.0)
    assert scene.engine.facts is not None
    (taker,) = (one for one in scene.engine.facts.takers if one.pid == 900)
    assert taker.cores == pytest.approx(0.7, abs=0.4 if rested_s == 3 else 0.01)
