"""What gputop costs itself: a collector that has just started again has spent nothing yet that can be told per second."""

from __future__ import annotations

import time

import pytest

from gputop.model.frame import Frame, Header, SelfCost
from gputop.stream.session import Session
from gputop.tui.canvas import OwnCost
from gputop.tui.panels import own_cost

START_NS = 10**12


@pytest.mark.parametrize(("age_s", "told"), [(0.001, False), (0.9, False), (2.0, True)])
def test_the_first_second_of_a_collector_is_not_told(age_s: float, told: bool):
    session = Session()
    session.ingest(Header(t_ns=START_NS))
    session.ingest(Frame(0, START_NS + int(age_s * 1e9), key=True, cost=SelfCost(280_000_000, 20 << 20)))
    own = OwnCost()
    own._began = time.monotonic() - 5.0, time.process_time()
    text = own_cost(session, own)
    assert bool(text) is told
    assert not told or text.startswith("self 14.")
