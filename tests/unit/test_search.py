"""Expressions that people type into the filter."""

from __future__ import annotations

import signal

from gputop.tui.draw.search import finds, why_no_search


def test_an_expression_that_would_search_for_years_ends_and_hides_nobody() -> None:
    before = signal.getsignal(signal.SIGALRM)
    endless = r"(\w+\s*)+#"
    assert why_no_search(endless) == ""
    assert finds(endless, "python\ntrain_resnet50_on_eight_gpus_with_many_workers")
    assert "too long" in why_no_search(endless)
    assert finds(endless, "x"), "it is not tried again"
    assert signal.getsignal(signal.SIGALRM) is before


def test_others_are_found_or_not() -> None:
    assert finds("^TRAIN", "python\ntrain.py")
    assert not finds("train$", "python\ntrain.py")
    assert finds("(", "what is none hides nobody")
