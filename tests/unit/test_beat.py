"""The beat: which deadline comes next when a tick took too long."""

from __future__ import annotations

import pytest

from gputop.collector import next_deadline


@pytest.mark.parametrize(
    ("now", "latest", "following"),
    [
        (40, 50, 100),  # in time
        (100, 50, 100),
        (150, 50, 100),  # late, and far enough from the one after it
        (151, 50, 200),
        (250, 50, 200),
        (1051, 50, 1100),
        (101, 0, 200),  # nothing late is wanted
        (200, 0, 200),
    ],
)
def test_a_beat_is_run_late_only_where_the_next_is_far_enough(now: int, latest: int, following: int) -> None:
    assert next_deadline(0, now, 100, latest) == following


def test_beats_stay_on_their_grid() -> None:
    deadline = 7
    for took in (3, 120, 160, 99, 1234, 50):
        following = next_deadline(deadline, deadline + took, 100, 50)
        assert following % 100 == 7
        assert following > deadline
        assert following >= deadline + took - 50
        deadline = following
