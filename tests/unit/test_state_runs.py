"""State lanes against the bytes a tick that they stand for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputop.stream.history import StateRuns

STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 9), st.booleans()), max_size=30)
STRETCH = 16


def _most(part: bytes) -> int:
    return max(set(part) - {0}, key=lambda code: (part.count(code), code), default=0)


@given(STEPS, st.integers(0, 120), st.integers(0, 120))
def test_it_says_what_a_code_a_tick_would(steps: list[tuple[int, int, int, bool]], a: int, b: int) -> None:
    states, ticks = StateRuns(), bytearray()
    for code, back, more, drops in steps:
        ticks += bytes(more)
        first = max(0, len(ticks) - more - back)
        states.put(code, first, len(ticks))
        ticks[first:] = bytes([code]) * (len(ticks) - first)
        if drops and len(ticks) > STRETCH:
            states.drop(STRETCH)
            del ticks[:STRETCH]
    first, last = min(a, b), min(max(a, b), len(ticks))
    assert states.most(first, last) == _most(bytes(ticks[first:last]))
    assert states.known == any(ticks)


def test_ticks_that_nobody_spoke_of_are_not_known() -> None:
    states = StateRuns()
    states.put(2, 10, 20)
    assert [states.most(0, 10), states.most(10, 20), states.most(20, 30), states.most(0, 30)] == [0, 2, 0, 2]
    states.drop(25)
    assert not states.known
