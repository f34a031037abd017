"""What a stream may claim of its reader: bytes in proportion to what it takes itself, and no number believed before it is counted."""

from __future__ import annotations

from gputop.recording.format import MAX_BLOCK_BYTES, FormatError

FREE_BYTES = 2 << 20  # of plain bytes, whatever a stream takes: seconds of a large machine
MOST_RATIO = 200  # plain bytes for one of the stream; measured: 15 of busy machines, 65 of a thousand processes that all sleep


class Budget:
    """Of a stream."""

    def __init__(self) -> None:
        self.stored_bytes = 0
        """What the stream takes, as far as that is known; it may grow."""
        self.place = 0
        """Where the block stands that is read next: in a file, where one may be read again, it is charged once; 0 in a pipe."""
        self._claimed = 0
        self._charged: set[int] = set()

    def charge(self, plain_bytes: int) -> None:
        """Let a block become so many plain bytes. Raises FormatError where that is more than is left."""
        if not 0 <= plain_bytes <= MAX_BLOCK_BYTES:
            raise FormatError("a block claims an impossible size")
        if self.place in self._charged:
            return
        if self._claimed + plain_bytes > FREE_BYTES + MOST_RATIO * self.stored_bytes:
            raise FormatError("a block claims more than its stream may")
        self._claimed += plain_bytes
        if self.place:
            self._charged.add(self.place)
