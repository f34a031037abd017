"""The data in a pickle, read without pickle: nothing that a file names is imported, built or called.

torch's flight recorder dumps dicts, lists, tuples, texts and numbers. Only the opcodes of these are known here; any other ends the reading,
as do a number without end and a memo that was never filled. A list may stand in many places, so a small file may unfold to more than
memory holds once it is walked: its values are counted as often as they stand there.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

from gputop.system.errors import Unavailable

MOST_OPCODES = 4_000_000  # 2,000 collectives with their stacks take 400,000; at most so many values are made
MOST_VALUES = 8_000_000  # of a dump, each counted as often as it stands there: 20,000 collectives with 100 frames each
MOST_MARKS = 64  # open at once: how deep lists and dicts lie in each other, 8 in a dump of torch's
MOST_TEXT_BYTES = 1 << 16  # of one text
_MOST_INT_BYTES = 16  # of one number
TOO_MANY = f"it holds more than {MOST_VALUES:,} values"
_INT, _SHORT, _FLOAT, _LENGTH, _LONG_LENGTH = (struct.Struct(one) for one in ("<i", "<H", ">d", "<I", "<Q"))
_HOLDERS = (list, tuple, dict)
_STOP, _MARK = ord(pickle.STOP), ord(pickle.MARK)


def read_pickle(data: bytes) -> Any:
    """The value of a pickle. Raises Unavailable with the reason if it is damaged, larger than any dump, or more than data."""
    reader = _Reader(data)
    try:
        value = reader.read()
    except (IndexError, struct.error, KeyError):
        raise Unavailable(f"it is damaged at byte {reader.at:,}") from None
    except UnicodeDecodeError:
        raise Unavailable(f"it holds a text that is none, at byte {reader.at:,}") from None
    _check_size(value)
    return value


def _check_size(value: Any) -> None:
    """Raise Unavailable if a value holds more than `MOST_VALUES`, or itself."""
    sizes: dict[int, int] = {}  # by id; 0 while its parts are counted
    rest = [value] if isinstance(value, _HOLDERS) else []
    while rest:
        one = rest[-1]
        if sizes.get(id(one)):
            rest.pop()
            continue
        parts = [part for part in (one.values() if isinstance(one, dict) else one) if isinstance(part, _HOLDERS)]
        if id(one) in sizes:
            sizes[id(one)] = size = 1 + len(one) + sum(sizes[id(part)] for part in parts)
            if size > MOST_VALUES:
                raise Unavailable(TOO_MANY)
        else:
            sizes[id(one)] = 0
            rest += {id(part): part for part in parts if not sizes.get(id(part))}.values()
            if any(sizes.get(id(part)) == 0 for part in parts):
                raise Unavailable("a list in it holds itself")


class _Reader:
    """A pickle's machine, with a stack and a memo, for the opcodes of plain data. Its methods raise IndexError, KeyError, struct.error or
    UnicodeDecodeError for what is damaged, Unavailable for what is too much."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._marks: list[int] = []  # where in the stack the open marks lie
        push, does = self._push, dict[bytes, Callable[[], None]]()
        does |= {pickle.BINGET: lambda: push(self._memo[self._byte()]), pickle.LONG_BINGET: lambda: push(self._memo[self._number(_LENGTH)])}
        does |= {pickle.BINPUT: lambda: self._keep(self._byte()), pickle.LONG_BINPUT: lambda: self._keep(self._number(_LENGTH))}
        does |= {pickle.BINUNICODE: lambda: self._text(self._number(_LENGTH)), pickle.SHORT_BINUNICODE: lambda: self._text(self._byte())}
        does |= {pickle.BINUNICODE8: lambda: self._text(self._number(_LONG_LENGTH)), pickle.MEMOIZE: lambda: self._keep(len(self._memo))}
        does |= {pickle.BININT1: lambda: push(self._byte()), pickle.BININT2: lambda: push(self._number(_SHORT))}
        does |= {pickle.BININT: lambda: push(self._number(_INT)), pickle.BINFLOAT: lambda: push(self._number(_FLOAT))}
        does |= {pickle.LONG1: lambda: self._long(self._byte()), pickle.LONG4: lambda: self._long(self._number(_INT))}
        does |= {pickle.NONE: lambda: push(None), pickle.NEWTRUE: lambda: push(True), pickle.NEWFALSE: lambda: push(False)}
        does |= {pickle.EMPTY_LIST: lambda: push([]), pickle.EMPTY_DICT: lambda: push({}), pickle.EMPTY_TUPLE: lambda: push(())}
        does |= {pickle.TUPLE: lambda: push(tuple(self._popped(self._marks.pop()))), pickle.TUPLE1: lambda: self._tuple(1)}
        does |= {pickle.TUPLE2: lambda: self._tuple(2), pickle.TUPLE3: lambda: self._tuple(3)}
        does |= {pickle.APPENDS: lambda: self._extend(self._marks.pop()), pickle.APPEND: lambda: self._extend(len(self._stack) - 1)}
        does |= {pickle.SETITEMS: lambda: self._set(self._marks.pop()), pickle.SETITEM: lambda: self._set(len(self._stack) - 2)}
        does |= {pickle.PROTO: lambda: self._pass_over(1), pickle.FRAME: lambda: self._pass_over(8)}
        self._does = {ord(code): act for code, act in does.items()}

    def read(self) -> Any:
        """The value at the end."""
        for _ in range(MOST_OPCODES):
            code = self._byte()
            if code == _MARK:
                if len(self._marks) >= MOST_MARKS:
                    raise Unavailable("its lists lie too deep in each other")
                self._marks.append(len(self._stack))
            elif code == _STOP:
                if len(self._stack) != 1 or self._marks:
                    raise IndexError
                return self._stack[0]
            elif code in self._does:
                self._does[code]()
            else:
                raise Unavailable(f"it holds more than data (opcode {bytes([code])!r} at byte {self.at - 1:,}), and is not read on")
        raise Unavailable(f"it holds more than {MOST_OPCODES:,} values")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _number(self, kind: struct.Struct) -> Any:
        (number,) = kind.unpack_from(self._data, self.at)
        self.at += kind.size
        return number

    def _pass_over(self, count: int) -> None:
        self.at += count

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _text(self, count: int) -> None:
        self._stack.append(self._bytes(count, MOST_TEXT_BYTES).decode("utf-8", "surrogatepass"))

    def _long(self, count: int) -> None:
        self._stack.append(int.from_bytes(self._bytes(count, _MOST_INT_BYTES), "little", signed=True))

    def _bytes(self, count: int, most: int) -> bytes:
        if not 0 <= count <= most:
            raise Unavailable(f"it holds a text or number of {count:,} bytes")
        found = self._data[self.at : self.at + count]
        self.at += count
        if len(found) < count:
            raise IndexError
        return found

    def _reach(self, start: int) -> None:
        """Raise IndexError if the values from ``start`` on do not all lie above the last mark."""
        if start < (self._marks[-1] if self._marks else 0):
            raise IndexError

    def _top(self) -> Any:
        self._reach(len(self._stack) - 1)
        return self._stack[-1]

    def _keep(self, number: int) -> None:
        self._memo[number] = self._top()

    def _popped(self, start: int) -> list[Any]:
        self._reach(start)
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def _tuple(self, count: int) -> None:
        self._stack.append(tuple(self._popped(len(self._stack) - count)))

    def _extend(self, start: int) -> None:
        found, top = self._popped(start), self._top()
        if type(top) is not list:
            raise IndexError
        top += found

    def _set(self, start: int) -> None:
        items, top = self._popped(start), self._top()
        if type(top) is not dict or len(items) % 2 or not all(type(key) in (str, int) for key in items[::2]):
            raise IndexError
        top.update(zip(items[::2], items[1::2], strict=True))
