"""The verdict that the screen is laid out for."""

from __future__ import annotations

from gputop.findings.verdict import Verdict
from gputop.model.frame import SECOND_NS

STORY_NS = 5 * SECOND_NS  # ns that another cause stands before its lanes come first: of two that take turns, neither moves a lane


class Story:
    """The verdict whose lanes come first: the first trouble that is found, and from then on whichever has stood for `STORY_NS`."""

    def __init__(self) -> None:
        self._told = self._next = Verdict()
        self._since_ns = 0  # when `_next` began to stand

    def of(self, verdict: Verdict, now_ns: int) -> Verdict:
        """The verdict to go by, if ``verdict`` is the present one."""
        if _place(verdict) != _place(self._next) or now_ns < self._since_ns:
            self._next, self._since_ns = verdict, now_ns
        if self._told.cause == "none" or _place(verdict) == _place(self._told) or now_ns - self._since_ns >= STORY_NS:
            self._told = verdict
        return self._told


def _place(verdict: Verdict) -> tuple[str, int | None, int | None]:
    return verdict.cause, verdict.gpu, verdict.trainer_pid
