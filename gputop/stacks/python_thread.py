"""What readers of Python stacks give, whichever of them did: one thread's frames, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass

from gputop.stacks.frames import Line

MAX_THREADS = 256


class Unreadable(Exception):
    """No stack of this process.

    ``kind``: permission, not-python, unsupported, gone, timeout, torn, missing (py-spy), hidden (its files), no-cuda.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PythonThread:
    """One thread of a dump, frames innermost first. ``tid`` is None before Python 3.11 unless the process was paused."""

    name: str
    tid: int | None
    pthread: int
    active: bool
    gil: bool
    frames: list[Line]
