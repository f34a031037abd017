"""Expressions that people type into the filter."""

from __future__ import annotations

import signal

from gputop.tui.draw.search import no_expression, searched


def test_an_expression_that_would_search_for_years_ends_and_hides_nobody() -> None:
    before = signal.getsignal(signal.SIGALRM)
    endless = r"(\w+\s*)+#"
    assert no_expression(endless) == ""
    assert searched(endless, "python\ntrain_resnet50_on_eight_gpus_with_many_workers")
    assert "too long" in no_expression(endless)
    assert searched(endless, "x"), "it is not tried again"
    assert signal.getsignal(signal.SIGALRM) is before


def test_others_are_found_or_not() -> None:
    assert searched("^TRAIN", "python\ntrain.py")
    assert not searched("train$", "python\ntrain.py")
    assert searched("(", "what is none hides nobody")
