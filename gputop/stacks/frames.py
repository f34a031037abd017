"""A frame as text, ``name (file:line)``, and a Python thread as its frames: what all readers of Python stacks return."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

MAX_FRAMES = 200  # of a thread, the innermost
_MAX_NAME = 200  # characters of a function's name
_MAX_FILE = 1024  # characters of a path, its end

_LINE = re.compile(r"(?P<name>.*?) \((?P<file>.*?)(?::(?P<line>\d+))?\)\Z", re.DOTALL)
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+t?)/")
_NATIVE = re.compile(r"\.(?:so[.\d]*|[chS]|cc|cpp|cxx|hpp|cu|cuh|rs)$")


class Line(NamedTuple):
    """A frame: function, file as the interpreter knows it, line (0: unknown)."""

    name: str
    file: str
    line: int

    @property
    def text(self) -> str:
        """``name (file:line)``, bounded. `parse` reads it back."""
        name = self.name.replace(" (", "(")[:_MAX_NAME]
        return f"{name} ({self.file[-_MAX_FILE:]}:{self.line})" if self.line else f"{name} ({self.file[-_MAX_FILE:]})"

    @property
    def library(self) -> bool:
        """True if the frame is Python's own, an installed package's or native code, not the user's Python."""
        return bool(_LIBRARY.match(self.file) or _NATIVE.search(self.file)) or self.file.startswith("<frozen")

    @property
    def short_file(self) -> str:
        """The path within the installed package: ``torch/utils/data/dataloader.py``; the whole path of other files."""
        return _LIBRARY.sub("", self.file, count=1)

    @property
    def place(self) -> str:
        """``data.py:41``."""
        base = self.file.rpartition("/")[2] or self.file
        return f"{base}:{self.line}" if self.line else base


def own_part(lines: list[Line]) -> list[Line]:
    """The frames of a worker's own work: a forked one still has its parent's frames below `Process._bootstrap`."""
    for i, line in enumerate(lines):
        if line.name.endswith("_bootstrap") and line.file.endswith("multiprocessing/process.py"):
            return lines[: i + 1]
    return lines


def own_call(lines: list[Line]) -> tuple[Line | None, str]:
    """The innermost line of the user's own code and the function that it called; None and empty if there is no such line."""
    at = next((i for i, line in enumerate(lines) if not line.library and line.line), None)
    if at is None:
        return None, ""
    return lines[at], lines[at - 1].name if at > 0 else ""


def parse(text: str) -> Line:
    """The frame that `Line.text` wrote. Text of another form becomes the name."""
    match = _LINE.match(text)
    if match is None:
        return Line(text, "", 0)
    return Line(match["name"], match["file"], int(match["line"] or 0))


MAX_THREADS = 256  # of a process


Weighted = tuple[tuple[str, ...], int]
"""A stack and its weight (samples, or ns): (frames outermost first, the first names the thread), weight."""


class Unreadable(Exception):
    """Raised for a stack that cannot be read.

    ``kind``: permission, not-python, unsupported (version), gone (ended), timeout, torn (it changed while read), missing (py-spy), hidden
    (its program's files), no-cuda.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PythonThread:
    """One thread of a dump, frames innermost first. ``tid``: None before Python 3.11, unless the process was paused."""

    name: str
    tid: int | None
    pthread: int
    active: bool
    gil: bool
    frames: list[Line]
