"""The memory layout of CPython 3.8 to 3.14 in 64-bit processes: offsets (bytes) of frames and threads, and code objects.

From 3.13 on the interpreter holds its offsets itself (`_Py_DebugOffsets`, at the start of `_PyRuntime`). For older versions they come from
the released headers, which do not change within a minor version. `Codes` reads a code object's name, file and line table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from msgspec import Struct

from gputop.stacks.frames import Line

NEWEST = 14  # minor version
UPGRADE = "pip install -U gputop-ebpf py-spy"  # the remedy for an unknown Python
DEBUG_OFFSETS_BYTES = 8 * 96  # more than _Py_DebugOffsets has in any known version
_COOKIE = b"xdebugpy"  # the first bytes of _Py_DebugOffsets
_ABSENT = -1


class Layout(Struct, frozen=True):
    """Offsets in bytes; -1: this version has no such field."""

    minor: int
    interpreters: int  # in _PyRuntime: pointer to the newest interpreter; the main one's follows 8 bytes later
    threads: int  # in an interpreter: pointer to its newest thread
    next_interpreter: int  # in an interpreter: pointer to the next older one
    next: int  # in a thread: pointer to the next older one
    native_id: int
    pthread: int
    frame: int  # in a thread: pointer to its innermost frame, or to the struct that has this pointer at ``hop``
    hop: int
    back: int  # in a frame: pointer to its caller
    code: int
    instruction: int  # in a frame: address of the instruction; before 3.11 its index, an int
    filename: int  # in a code object, as the next four
    name: int
    first_line: int
    lines: int
    bytecode: int
    c_frame: int = _ABSENT  # in a thread: an address on the C stack of the OS thread that executes it (3.10 to 3.12)
    copies: int = _ABSENT  # in a code object: pointer to the threads' own copies of the bytecode (free-threaded 3.14)
    ob_type: int = 8
    ob_size: int = 16  # in an object with a size: bytes objects, and code objects (length of the bytecode)
    bytes_data: int = 32
    str_length: int = 16
    str_state: int = 32
    kind_shift: int = 2  # in a string's state: the bit at which the character width begins; ``compact`` and ``ascii`` follow it
    str_data: int = 40  # in an ASCII string: its characters; in another string they come ``wide_more`` bytes later
    wide_more: int = 16

    @property
    def free_threaded(self) -> bool:
        """True if the layout belongs to a build without GIL, with its longer object header."""
        return self.ob_type > 8

    @property
    def instruction_mask(self) -> int:
        """The bits of the word at ``instruction`` that hold it."""
        return (1 << 64) - 1 if self.minor >= 11 else 0xFFFFFFFF


_OLD_TEXT = {"str_data": 48, "wide_more": 24}
_FRAME_OBJECT = {
    "interpreters": 32, "threads": 8, "next_interpreter": 0, "next": 8, "native_id": _ABSENT, "pthread": 176, "frame": 24,
    "hop": _ABSENT, "back": 24, "code": 32, "filename": 104, "name": 112, "first_line": 40, "lines": 120, "bytecode": _ABSENT, **_OLD_TEXT,
}  # fmt: skip
RELEASED = {
    8: Layout(8, instruction=104, **_FRAME_OBJECT),
    9: Layout(9, instruction=104, **_FRAME_OBJECT),
    10: Layout(10, instruction=96, c_frame=48, **_FRAME_OBJECT),
    11: Layout(11, 40, threads=16, next_interpreter=0, next=8, native_id=160, pthread=152, frame=56, c_frame=56, hop=8, back=48, code=32,
               instruction=56, filename=112, name=128, first_line=72, lines=136, bytecode=184, **_OLD_TEXT),
    12: Layout(12, 40, threads=72, next_interpreter=0, next=8, native_id=144, pthread=136, frame=56, c_frame=56, hop=0, back=8, code=0,
               instruction=56, filename=112, name=128, first_line=68, lines=136, bytecode=192),
}  # fmt: skip

# Minor version -> number of words in each group of _Py_DebugOffsets: runtime, interpreter, thread, frame, code, object, type, tuple,
# list, set, dict, float, int, bytes, str.
_GROUPS = {13: (3, 13, 9, 6, 10, 2, 4, 3, 3, 0, 3, 2, 3, 3, 4), 14: (3, 16, 9, 8, 11, 2, 4, 3, 3, 4, 3, 2, 3, 3, 4)}
_RUNTIME, _INTERPRETER, _THREAD, _FRAME, _CODE, _OBJECT, _BYTES, _STR = 0, 1, 2, 3, 4, 5, 13, 14


def described(debug_offsets: bytes) -> Layout | None:
    """The layout in the _Py_DebugOffsets of 3.13 and later; None for another start of `_PyRuntime`, or a newer form."""
    cookie, version, free_threaded = struct.unpack_from("<8sQQ", debug_offsets)
    minor = version >> 16 & 0xFF
    if cookie != _COOKIE or version >> 24 != 3 or minor not in _GROUPS:
        return None
    words = struct.unpack_from(f"<{sum(_GROUPS[minor])}Q", debug_offsets, 24)

    def word(group: int, index: int) -> int:
        offset: int = words[sum(_GROUPS[minor][:group]) + index]
        return offset

    ascii_bytes = word(_STR, 3)
    return Layout(
        minor, word(_RUNTIME, 2), threads=word(_INTERPRETER, 3), next_interpreter=word(_INTERPRETER, 2), next=word(_THREAD, 2),
        native_id=word(_THREAD, 6), pthread=word(_THREAD, 5), frame=word(_THREAD, 4), hop=_ABSENT, back=word(_FRAME, 1),
        code=word(_FRAME, 2), instruction=word(_FRAME, 3), filename=word(_CODE, 1), name=word(_CODE, 3), first_line=word(_CODE, 5),
        lines=word(_CODE, 4), bytecode=word(_CODE, 9), copies=word(_CODE, 10) if free_threaded and minor >= 14 else _ABSENT,
        ob_type=word(_OBJECT, 1), ob_size=word(_BYTES, 1), bytes_data=word(_BYTES, 2), str_length=word(_STR, 2),
        str_state=word(_STR, 1), str_data=ascii_bytes, kind_shift=8 if free_threaded and minor >= 14 else 2,
    )  # fmt: skip


_MAX_TEXT = 4096  # characters of a name or path
_MAX_TABLE = 1 << 20  # bytes of a line table
_MAX_COPIES = 4096  # threads with bytecode of their own
_MOST_LINES = 4096  # in the cache: a process has some hundreds; a hostile one has any number
_NO_LINE = -128  # line delta in 3.10's table: the span has no line
_MOST_BITS = 36  # of a number in a line table: CPython's lines have 32


class Torn(Exception):
    """Raised for memory that holds no code object: it changed while read, or the layout differs."""


class Codes:
    """Resolves (code object, instruction) to lines, with a cache. ``read(address, bytes)`` raises OSError."""

    def __init__(self, read: Callable[[int, int], bytes], layout: Layout, code_type: int) -> None:
        self._read, self._layout, self._code_type = read, layout, code_type
        self._lines: dict[tuple[int, int], Line] = {}

    def line(self, code: int, instruction: int) -> Line:
        """The line of an instruction of the code object at ``code``. Raises Torn."""
        if (code, instruction) not in self._lines:
            if len(self._lines) >= _MOST_LINES:
                self._lines.clear()
            try:
                self._lines[code, instruction] = self._resolve(code, instruction)
            except (OSError, struct.error, OverflowError) as error:
                raise Torn(str(error)) from None
        return self._lines[code, instruction]

    def is_code(self, address: int) -> bool:
        """True if a code object is at ``address``. Raises OSError."""
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
        """Bytes from the start of the bytecode, the code object's own or a thread's copy, to the instruction."""
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
    """The line of the instruction at byte ``offset`` of the bytecode, None if it has none. ``table``: co_lnotab or co_linetable."""
    if offset < 0:
        return None
    if minor < 10:
        return _from_lnotab(table, first, offset)
    spans = _spans_of_pairs(table, first) if minor == 10 else _spans_of_locations(table, first)
    return next((line for end, line in spans if offset < end), None)


def _from_lnotab(table: bytes, first: int, offset: int) -> int:
    """3.8 and 3.9: pairs (bytes of code, signed lines) to the next entry."""
    at, line = 0, first
    for step, more in struct.iter_unpack("<Bb", table):
        at += step
        if at > offset:
            break
        line += more
    return line


def _spans_of_pairs(table: bytes, first: int) -> Iterator[tuple[int, int | None]]:
    """3.10: pairs (bytes of code, signed lines) of each span; -128: a span without a line."""
    end, line = 0, first
    for length, more in struct.iter_unpack("<Bb", table):
        end += length
        if more == _NO_LINE:
            yield end, None
        else:
            line += more
            yield end, line


def _spans_of_locations(table: bytes, first: int) -> Iterator[tuple[int, int | None]]:
    """3.11 on: entries with a first byte, the only one with its highest bit set, that holds a form and a length in instructions."""
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
    """A varint of six bits a byte, lowest first; its lowest bit is the sign."""
    value = 0
    for shift in range(0, _MOST_BITS, 6):  # CPython writes no longer ones; a hostile process may
        if at >= len(table):
            break
        value |= (table[at] & 63) << shift
        if not table[at] & 64:
            break
        at += 1
    return -(value >> 1) if value & 1 else value >> 1
