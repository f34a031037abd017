"""Streams for readers, made of items that there are already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gputop.model.frame import Frame, Header
from gputop.stream.restarts import OneStream


class Given:
    """A stream of these items, ``most`` of which come with one reading; then it ends."""

    trouble, why, silent_s, due_s = "", "it is over", 0.0, float("inf")

    def __init__(self, items: Sequence[Header | Frame], most: int = 1 << 30) -> None:
        self.left, self._most = list(items), most
        self.is_closed = False

    @property
    def waits(self) -> bool:
        return bool(self.left)

    def fileno(self) -> int:
        return -1

    def read(self, wait_s: float) -> list[Header | Frame] | None:
        assert wait_s == 0.0, "the loop waits itself"
        taken, self.left = self.left[: self._most], self.left[self._most :]
        return taken or None

    def close(self) -> None:
        self.is_closed = True


def items_of(stream: OneStream) -> Iterator[Header | Frame]:
    """What comes until the stream ends."""
    while (items := stream.read(0.2)) is not None:
        items.reverse()
        while items:
            yield items.pop()
