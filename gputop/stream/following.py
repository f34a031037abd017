"""Follows a stream: folds each frame into the board, judges it at the engine's pace, keeps the last seconds for rates.

Every reader of a stream does it here: the screen's session, recorder, exporter, alerts, scripts' JSON, experiments, recordings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from gputop.diagnosis import Engine
from gputop.findings.policy import FEED_EVERY_NS
from gputop.findings.runs import Run
from gputop.model.board import Board, LastSeconds
from gputop.model.frame import Frame, Header


class Following:
    """Header, board, diagnosis and last seconds of one stream. Its thread alone may use it, or whoever holds that thread's lock."""

    def __init__(self, board: Board | None = None, *, every_ns: int = FEED_EVERY_NS, keeps_past: bool = False) -> None:
        """``board``: the one to continue; ``every_ns``: time between two feeds of the engine; ``keeps_past``: whether `past` is filled."""
        self.header: Header | None = None
        self.board = Board() if board is None else board
        self.engine = Engine()
        self.past = LastSeconds()
        self.every_ns = every_ns
        self._keeps_past = keeps_past
        self._runs: Sequence[Run] = ()

    def remember(self, past: Sequence[Run]) -> None:
        """Let the diagnosis judge runs beside these earlier ones."""
        self._runs = self.engine.slowdowns.past = past

    def take(self, item: Header | Frame) -> bool:
        """Take the next item of the stream; whether the engine was fed with it."""
        if isinstance(item, Header):
            self.restate(item)
            return False
        self.fold(item)
        return self.judge(item)

    def through(self, items: Iterable[Header | Frame]) -> Iterator[Board]:
        """Take all items; the board after each feed of the engine."""
        return (self.board for item in items if self.take(item))

    def restate(self, header: Header) -> bool:
        """Take a header, which comes when a stream begins, a collector was restarted, or a clock has jumped; returns whether its machine
        was booted again. The diagnosis continues as long as the boot is the same. Rates start over after a restart."""
        known, self.header = self.header, header
        rebooted = known is not None and header.boot_id != known.boot_id
        if known is not None and not rebooted:
            self.header = replace(header, slept=known.dated(header).slept)
        stood, self.board = self.board, self.board.with_header(self.header)
        if stood is not self.board:
            self.past = LastSeconds()
        if rebooted:
            self.engine = Engine()
            self.remember(self._runs)
        return rebooted

    def fold(self, frame: Frame) -> None:
        """The first half of `take`: the board holds the frame's readings."""
        self.board.fold(frame)
        if self._keeps_past:
            self.past.add(self.board)

    def judge(self, frame: Frame) -> bool:
        """Let the engine judge a frame that `take` has folded into the board; returns whether the engine was fed."""
        return self.engine.follow(self.board, frame, self.every_ns)


class Followed:
    """A reader that follows a stream by its attribute ``following``."""

    following: Following

    @property
    def board(self) -> Board:
        """The newest readings."""
        return self.following.board

    @property
    def engine(self) -> Engine:
        """The diagnosis."""
        return self.following.engine
