"""A stream as lines of text, for ways that cut long lines or carry only text (srun --label, pdsh, clush).

srun cuts lines of 5 kB to pieces and leaves lines of 900 bytes whole (measured). A line is ``gp `` and base64; all other lines are passed
over, and a lost line damages a block, which its checksum shows.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode

MARK = b"gp "
PIECE_BYTES = 642  # of the stream in a line of 860 bytes
MOST_LINE_BYTES = 4096  # of a line that is looked at; more is no line of ours


def to_lines(data: bytes | bytearray | memoryview) -> bytes:
    """``data`` as lines."""
    pieces = (bytes(data[i : i + PIECE_BYTES]) for i in range(0, len(data), PIECE_BYTES))
    return b"".join(MARK + b64encode(piece) + b"\n" for piece in pieces)


class FromLines:
    """Puts the stream together again, from text in parts of any size. A label before a line (``3: gp …``) is passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """The bytes that are whole now."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-MOST_LINE_BYTES:]
        found = []
        for line in lines:
            _, mark, text = line.rpartition(MARK)
            if mark and len(line) <= MOST_LINE_BYTES:
                try:
                    found.append(b64decode(text.strip(), validate=True))
                except binascii.Error:
                    continue
        return b"".join(found)
