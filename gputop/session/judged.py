"""A recording, or a stretch of it, through the diagnosis, frame by frame as live."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from gputop.diagnosis import Engine
from gputop.model.board import Board
from gputop.model.frame import Frame, Header
from gputop.recording.reader import Recording

LEAD_NS = 10_000_000_000
"""What is looked at before a stretch of a recording."""


def judged(engine: Engine, recording: Recording, start_ns: int, end_ns: int) -> Iterator[Board]:
    """Feed the engine with the frames with ``start_ns <= t_ns < end_ns``, from the first to the last; the board after each feed.

    It sees what was before, too, to know a pause and a start from the rest, but what it finds is of these alone.
    """
    board = recording.board_at(max(recording.start_ns, start_ns - LEAD_NS))
    if board.seq >= 0:
        deque(closely(engine, board, recording.frames(board.t_ns + 1, start_ns + 1)), maxlen=0)
        engine.feed(board)
        engine.begin()
        yield board
    yield from closely(engine, board, recording.frames(start_ns + 1, end_ns))
    if board.t_ns > engine.fed_ns:
        engine.feed(board)
        yield board


def closely(engine: Engine, board: Board, items: Iterable[Header | Frame]) -> Iterator[Board]:
    """Feed the engine frame by frame, as the screen does, with what follows on ``board``; the board after each feed."""
    for item in items:
        if isinstance(item, Header):
            board = board.with_header(item)
            continue
        board.fold(item)
        if engine.follow(board, item):
            yield board
