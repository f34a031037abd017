"""Diagnosis of a recording or a stretch: frame by frame as live, or by its tier of seconds if it is long."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gputop.findings.policy import FEED_EVERY_NS
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame
from gputop.recording.format import SECONDS, TICKS, TIER_NAMES
from gputop.recording.reader import Recording
from gputop.stream import runs
from gputop.stream.following import Following
from gputop.stream.kept_traces import standing
from gputop.stream.pace import LookPace

LEAD_NS = 10 * SECOND_NS  # before a stretch of a recording, that are judged as well
LONG_NS = 300 * SECOND_NS  # a longer stretch is read by seconds
SELDOM_FROM_NS = 1800 * SECOND_NS  # a longer stretch is judged seldom while nothing turns (`LookPace`)


def tier_for(start_ns: int, end_ns: int, fine: bool) -> int:
    """The tier by which a stretch of a recording is read: every tick where it is short, or where that is asked for."""
    return TICKS if fine or end_ns - start_ns <= LONG_NS else SECONDS


def tier_words(recording: Recording, start_ns: int, end_ns: int) -> str:
    """Text that names the tiers by which a stretch is read; empty if that is every tick."""
    names = [TIER_NAMES[tier] for tier in recording.tiers_between(start_ns, end_ns, recording.tier) if tier != TICKS]
    if not names:
        return ""
    has_ticks = recording.tier != TICKS and TICKS in recording.tiers_between(start_ns, end_ns, TICKS)
    return f"read at {' and '.join(names)}{'; --fine reads every tick' if has_ticks else ', for the file has no ticks of all this time'}"


def judged(following: Following, recording: Recording, start_ns: int, end_ns: int, fine: bool = False) -> Iterator[Board]:
    """Follow the frames with ``start_ns <= t_ns < end_ns``, from the first to the last; yields the board after each feed of the engine.

    The engine also sees the time before, to distinguish a pause and a start, but its findings are about these frames alone.
    """
    tier = tier_for(start_ns, min(end_ns, recording.end_ns), fine)
    following.remember(runs.beside(recording))
    board = following.board = recording.board_at(max(recording.start_ns, start_ns - LEAD_NS), tier)
    board.traces = standing(recording, board.t_ns)
    engine = following.engine
    if board.seq >= 0:
        deque(following.through(recording.frames(board.t_ns + 1, start_ns + 1, tier=tier)), maxlen=0)
        engine.feed(board)
        engine.begin()
        yield board
    frames = recording.frames(start_ns + 1, end_ns, tier=tier)
    if tier == SECONDS and end_ns - start_ns > SELDOM_FROM_NS:
        yield from _paced(following, frames)
    else:
        following.every_ns = FEED_EVERY_NS
        yield from following.through(frames)
    if board.t_ns > engine.fed_ns:
        engine.feed(board, following.every_ns)
        yield board


def _paced(following: Following, frames: Iterator[Frame]) -> Iterator[Board]:
    """The board after each feed. What was before a turn is judged before the board holds what comes after it."""
    pace, board, engine = LookPace(), following.board, following.engine
    for frame in frames:
        if pace.turns(frame, board, engine.states) and board.t_ns > engine.fed_ns:
            engine.feed(board, following.every_ns, at_turn=True)
            yield board
        following.every_ns = pace.every_ns(frame.t_ns)
        if following.take(frame):
            yield board
