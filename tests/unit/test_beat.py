"""The beat: which deadline comes next when a tick took too long."""

from __future__ import annotations

import pytest

from gputop.collector.beat import next_deadline


@pytest.mark.parametrize(
    ("began", "ended", "following"),
    [
        (0, 40, 100),  # in time
        (0, 100, 100),
        (0, 150, 100),  # late, and far enough from the one after it
        (0, 151, 200),
        (0, 250, 200),
        (0, 1051, 1100),
        (50, 60, 100),  # began late
        (51, 60, 200),
        (372, 380, 500),  # was stopped before it began
        (350, 360, 400),
        (51, 260, 300),
    ],
)
def test_a_beat_is_run_where_it_is_far_enough_from_its_neighbours(began: int, ended: int, following: int) -> None:
    assert next_deadline(0, began, ended, 100) == following


def test_beats_stay_on_their_grid() -> None:
    deadline = 7
    for took in (3, 120, 160, 99, 1234, 50):
        following = next_deadline(deadline, deadline, deadline + took, 100)
        assert following % 100 == 7
        assert following > deadline
        assert following >= deadline + took - 50
        deadline = following
