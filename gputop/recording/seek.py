"""Seeks in chunks that lie in memory or in a file: the board at a moment, and the frames that follow.

A chunk begins with a key frame, so a reader may begin there; it is made of blocks, and a block may build upon earlier ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from gputop.model.board import Board
from gputop.model.frame import Frame, Header


class Block(Protocol):
    """Some frames, decoded when asked for."""

    @property
    def t_ns(self) -> int:
        """CLOCK_MONOTONIC of the first frame."""
        ...

    def frames(self) -> Sequence[Frame]:
        """The frames; none if the block is damaged."""
        ...


AnyBlock = TypeVar("AnyBlock", bound=Block, covariant=True)


class Chunk(Protocol[AnyBlock]):
    """The blocks from one key frame to the next."""

    @property
    def t_ns(self) -> int:
        """CLOCK_MONOTONIC of the first frame."""
        ...

    def blocks(self) -> Sequence[AnyBlock]:
        """The blocks, in order of time."""
        ...


AnyChunk = TypeVar("AnyChunk", bound=Chunk[Any])


def blocks_between(chunks: Sequence[AnyChunk], start_ns: int, end_ns: int) -> Iterator[tuple[AnyChunk, Any]]:
    """The blocks in which frames with ``start_ns <= t_ns < end_ns`` may stand, each with its chunk, in order."""
    for i in range(_find(chunks, start_ns), len(chunks)):
        chunk = chunks[i]
        if chunk.t_ns >= end_ns:
            return
        blocks = chunk.blocks()
        for block in blocks[_find(blocks, max(start_ns, chunk.t_ns)) :]:
            if block.t_ns >= end_ns:
                break
            yield chunk, block


def frames_between(chunks: Sequence[Chunk[AnyBlock]], start_ns: int, end_ns: int) -> Iterator[Frame]:
    """The frames with ``start_ns <= t_ns < end_ns``, in order."""
    for _, block in blocks_between(chunks, start_ns, end_ns):
        yield from (frame for frame in block.frames() if start_ns <= frame.t_ns < end_ns)


def _find(parts: Sequence[Chunk[Block]] | Sequence[Block], t_ns: int) -> int:
    """Index of the last part that begins at or before ``t_ns``, else 0."""
    return max(0, bisect_right(parts, t_ns, key=lambda part: part.t_ns) - 1)


class Seeker:
    """Boards at any moment. It keeps the last chunk, since users go back in time in small steps."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self._chunk_ns = -1
        self._frames: dict[int, Sequence[Frame]] = {}  # decoded blocks of the chunk, by their time
        self._board = Board(header=header)

    def board_at(self, chunks: Sequence[Chunk[Block]], t_ns: int) -> Board:
        """Board at ``t_ns``, for the caller to keep; empty (``seq`` -1) if nothing had been read by that time."""
        if not chunks or chunks[0].t_ns > t_ns:
            return Board(header=self.header)
        chunk = chunks[_find(chunks, t_ns)]
        if chunk.t_ns != self._chunk_ns:
            self._chunk_ns, self._frames, self._board = chunk.t_ns, {}, Board(header=self.header)
        if t_ns < self._board.t_ns:
            self._board = Board(header=self.header)
        blocks = [block for block in chunk.blocks() if block.t_ns <= t_ns]
        for block in blocks[_find(blocks, self._board.t_ns) :]:
            self._fold(block, t_ns, keep=block is not blocks[-1] or chunk is not chunks[-1])
        return self._board.snapshot()

    def _fold(self, block: Block, t_ns: int, keep: bool) -> None:
        """``keep`` is False for the last block of all, which may still grow."""
        frames = self._frames.get(block.t_ns) or block.frames()
        if keep:
            self._frames[block.t_ns] = frames
        for frame in frames:
            if self._board.t_ns < frame.t_ns <= t_ns:
                self._board.fold(frame)
