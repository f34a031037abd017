"""Where a CPython of 3.8 to 3.14 keeps what a stack is made of: offsets in bytes, in 64-bit processes.

From 3.13 on the interpreter says them itself (`_Py_DebugOffsets`, the first thing in `_PyRuntime`); before, they are those of the
released headers, which do not change within a minor version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

NEWEST = 14
UPGRADE = "pip install -U gputop-ebpf py-spy"
DEBUG_OFFSETS_BYTES = 8 * 96
"""More than any known version has."""
_COOKIE = b"xdebugpy"
_ABSENT = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets; -1 for what this version has not."""

    minor: int
    interpreters: int
    """_PyRuntime: the newest interpreter, the main one 8 bytes behind it."""
    threads: int
    """Interpreter: the newest thread."""
    next_interpreter: int
    """Interpreter: the one before it."""
    next: int
    """Thread: the one before it."""
    native_id: int
    pthread: int
    frame: int
    """Thread: its innermost frame, or what keeps that at ``hop``."""
    hop: int
    back: int
    """Frame: the one that called it."""
    code: int
    instruction: int
    """Frame: address of the instruction (an int, the index of it, before 3.11)."""
    filename: int
    """Code object, as are the next four."""
    name: int
    first_line: int
    lines: int
    bytecode: int
    c_frame: int = _ABSENT
    """Thread: an address on the C stack of who executes it (3.10 to 3.12)."""
    copies: int = _ABSENT
    """Code object: each thread's own bytecode (free-threaded 3.14)."""
    ob_type: int = 8
    ob_size: int = 16
    """Of an object with a size: bytes, and the code object's bytecode."""
    bytes_data: int = 32
    str_length: int = 16
    str_state: int = 32
    kind_shift: int = 2
    """Where in the state's bits the width of a character is; ``compact`` and ``ascii`` follow it."""
    str_data: int = 40
    """Of an ASCII string; others have theirs ``wide_more`` later."""
    wide_more: int = 16

    @property
    def free_threaded(self) -> bool:
        """A build without GIL: its objects have a longer head."""
        return self.ob_type > 8

    @property
    def instruction_mask(self) -> int:
        """What of the 64 bits at ``instruction`` is the instruction."""
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

# Words of each group of _Py_DebugOffsets, in order: runtime, interpreter, thread, frame, code, object, type, tuple, list, set, dict,
# float, int, bytes, str.
_GROUPS = {13: (3, 13, 9, 6, 10, 2, 4, 3, 3, 0, 3, 2, 3, 3, 4), 14: (3, 16, 9, 8, 11, 2, 4, 3, 3, 4, 3, 2, 3, 3, 4)}
_RUNTIME, _INTERPRETER, _THREAD, _FRAME, _CODE, _OBJECT, _BYTES, _STR = 0, 1, 2, 3, 4, 5, 13, 14


def described(debug_offsets: bytes) -> Layout | None:
    """What 3.13 and later say of themselves at the start of `_PyRuntime`; None where it does not say so, or in a newer form."""
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
