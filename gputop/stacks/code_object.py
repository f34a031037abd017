"""Code objects of another process: name, file, and the line of an instruction. Pure over what is read of its memory."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from gputop.stacks.frames import Line
from gputop.stacks.layout import Layout

_MAX_TEXT = 4096
_MAX_TABLE = 1 << 20
_MAX_COPIES = 4096
_MOST_LINES = 4096  # that are remembered: a process has some hundreds, and one that is made to has as many as it likes
_NO_LINE = -128
_MOST_BITS = 36  # of a number in a line table: CPython's lines have 32 bits


class Torn(Exception):
    """What was read is no code object: it changed meanwhile, or the layout is another."""


class Codes:
    """Resolves (code object, instruction) to lines, each once. ``read(address, bytes)`` raises OSError."""

    def __init__(self, read: Callable[[int, int], bytes], layout: Layout, code_type: int) -> None:
        self._read, self._layout, self._code_type = read, layout, code_type
        self._lines: dict[tuple[int, int], Line] = {}

    def line(self, code: int, instruction: int) -> Line:
        """The line an instruction of ``code`` belongs to; raises Torn."""
        if (code, instruction) not in self._lines:
            if len(self._lines) >= _MOST_LINES:
                self._lines.clear()
            try:
                self._lines[code, instruction] = self._resolve(code, instruction)
            except (OSError, struct.error, OverflowError) as error:
                raise Torn(str(error)) from None
        return self._lines[code, instruction]

    def is_code(self, address: int) -> bool:
        """Whether the object there is a code object; raises OSError."""
        return self._word(address + self._layout.ob_type) == self._code_type

    def _resolve(self, code: int, instruction: int) -> Line:
        if not self.is_code(code):
            raise Torn("no code object")
        at = self._layout
        name, file = (self._text(self._word(code + offset)) for offset in (at.name, at.filename))
        first: int = struct.unpack("<i", self._read(code + at.first_line, 4))[0]
        table = self._bytes(self._word(code + at.lines))
        return Line(name, file, line_of(at.minor, table, first, self._offset(code, instruction)) or 0)

    def _offset(self, code: int, instruction: int) -> int:
        """Bytes from the start of the bytecode: of the code object's own, or of a thread's copy."""
        at = self._layout
        if at.bytecode < 0:
            return instruction * (2 if at.minor >= 10 else 1)
        size = 2 * self._word(code + at.ob_size)
        starts = [code + at.bytecode, *(self._copies(code) if at.copies >= 0 else ())]
        return next((instruction - start for start in starts if 0 <= instruction - start < size), -1)

    def _copies(self, code: int) -> tuple[int, ...]:
        array = self._word(code + self._layout.copies)
        if not array:
            return ()
        count = min(self._word(array), _MAX_COPIES)
        return struct.unpack(f"<{count}Q", self._read(array + 8, 8 * count))

    def _word(self, address: int) -> int:
        word: int = struct.unpack("<Q", self._read(address, 8))[0]
        return word

    def _bytes(self, address: int) -> bytes:
        size = self._word(address + self._layout.ob_size)
        if size > _MAX_TABLE:
            raise Torn("a line table of impossible size")
        return self._read(address + self._layout.bytes_data, size)

    def _text(self, address: int) -> str:
        at = self._layout
        length = min(self._word(address + at.str_length), _MAX_TEXT)
        state = struct.unpack("<I", self._read(address + at.str_state, 4))[0] >> at.kind_shift
        width, compact, ascii_only = state & 7, state >> 3 & 1, state >> 4 & 1
        if width not in (1, 2, 4) or not compact:
            raise Torn("no compact string")
        data = self._read(address + at.str_data + (0 if ascii_only else at.wide_more), length * width)
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "replace")


def line_of(minor: int, table: bytes, first: int, offset: int) -> int | None:
    """The line of the instruction at byte ``offset`` of the bytecode, None where it has none. ``table``: co_lnotab or co_linetable."""
    if offset < 0:
        return None
    if minor < 10:
        return _from_lnotab(table, first, offset)
    spans = _spans_of_pairs(table, first) if minor == 10 else _spans_of_locations(table, first)
    return next((line for end, line in spans if offset < end), None)


def _from_lnotab(table: bytes, first: int, offset: int) -> int:
    """3.8, 3.9: (bytes of code, signed lines) to the next entry."""
    at, line = 0, first
    for step, more in struct.iter_unpack("<Bb", table):
        at += step
        if at > offset:
            break
        line += more
    return line


def _spans_of_pairs(table: bytes, first: int) -> Iterator[tuple[int, int | None]]:
    """3.10: (bytes of code, signed lines) of each span; -128 is a span without a line."""
    end, line = 0, first
    for length, more in struct.iter_unpack("<Bb", table):
        end += length
        if more == _NO_LINE:
            yield end, None
        else:
            line += more
            yield end, line


def _spans_of_locations(table: bytes, first: int) -> Iterator[tuple[int, int | None]]:
    """3.11 on: entries whose first byte alone has its highest bit set, which holds a form and a length in instructions."""
    end, line, at = 0, first, 0
    while at < len(table):
        form, length = table[at] >> 3 & 15, (table[at] & 7) + 1
        end += 2 * length
        if form in (13, 14):
            line += _signed(table, at + 1)
        elif 10 <= form <= 12:
            line += form - 10
        yield end, None if form == 15 else line
        at += 1
        while at < len(table) and table[at] < 0x80:
            at += 1


def _signed(table: bytes, at: int) -> int:
    """A varint of six bits a byte, lowest first, whose lowest bit is the sign."""
    value = 0
    for shift in range(0, _MOST_BITS, 6):  # no line has more, but whose table it is may have made it up
        if at >= len(table):
            break
        value |= (table[at] & 63) << shift
        if not table[at] & 64:
            break
        at += 1
    return -(value >> 1) if value & 1 else value >> 1
