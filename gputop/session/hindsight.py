"""The diagnosis of a recording in hindsight: what live would have said, from a reading of a second at a time.

Of more than `LONG_NS` it is asked every other second only: what counts in hours are not seconds, and somebody waits for the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from gputop.diagnosis import Engine
from gputop.diagnosis.engine import FEED_EVERY_NS
from gputop.model.board import Board
from gputop.recording.reader import Recording
from gputop.session.ahead import read_ahead

LONG_NS = 1_800_000_000_000
SELDOM_NS = 2_000_000_000


def hindsight(engine: Engine, board: Board, recording: Recording, start_ns: int = 0, end_ns: int = 1 << 63) -> Iterator[Board]:
    """Feed the engine about once a second, or two, with the frames with ``start_ns <= t_ns < end_ns``; the board after each feed.

    ``board`` is what stood before. What cannot be read is passed over, see `Recording.problem`.
    """
    span_ns = min(end_ns, recording.end_ns) - max(start_ns, recording.start_ns)
    every_ns = SELDOM_NS if span_ns > LONG_NS else FEED_EVERY_NS
    for told in read_ahead(recording, start_ns, end_ns):
        for frame in told.frames:
            board.fold(frame)
        engine.look_back(told.frames, told.kinds, told.gpus)
        if engine.is_due(board.t_ns, every_ns):
            engine.feed(board)
            yield board
