"""A stream whose collector is restarted when it ends: the pauses between restarts, and the marker at the first frame after a gap."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from gputop.model.frame import Frame, Header, Mark
from gputop.system.errors import UserError

RESTART_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # s before each restart in a row; the last one repeats (a choice)
STEADY_S = 30.0  # s that a collector must run for the pauses to start over (a choice)


class OneStream(Protocol):
    """The stream of one collector: a child, a pipe, a recording that is played."""

    @property
    def waits(self) -> bool: ...  # whether there is something to read

    def fileno(self) -> int: ...  # -1: there is no descriptor to wait for

    def read(self, wait_s: float, /) -> list[Header | Frame] | None: ...  # None: it has ended

    def ending(self) -> str: ...  # the reason why it has ended

    def close(self) -> None: ...


class Restarts:
    """Times restarts, and marks the first frame of each collector."""

    def __init__(self) -> None:
        self.failures = 0  # collectors in a row that ran for less than `STEADY_S`
        self._began_s = time.monotonic()
        self._last_ns = 0
        self._why = ""

    @property
    def at_slowest(self) -> bool:
        """True if the pauses have reached the longest."""
        return self.failures > len(RESTART_S)

    @property
    def is_steady(self) -> bool:
        """True if the collector has run for `STEADY_S`."""
        return time.monotonic() - self._began_s > STEADY_S

    def begin(self) -> None:
        """A collector starts now."""
        self._began_s = time.monotonic()

    def end(self, why: str) -> float:
        """The collector ended; returns the seconds until the next start."""
        self._why = why
        self.failures = 1 if self.is_steady else self.failures + 1
        return RESTART_S[min(self.failures, len(RESTART_S)) - 1]

    def mark_gap(self, item: Header | Frame) -> None:
        """Add a marker to the first frame after a gap."""
        if isinstance(item, Frame):
            if self._why and 0 < self._last_ns < item.t_ns:
                item.marks = [Mark.of_gap(self._last_ns, item.t_ns, f"the collector ended ({self._why})"), *item.marks]
                item.came_as(b"")
            self._last_ns, self._why = item.t_ns, ""


class LastingStream:
    """Reads collectors one after the other. ``notify`` gets a line when one ends, and when readings come again.

    Without ``start`` there is no second one: the stream ends with the first.
    """

    def __init__(
        self, first: OneStream, start: Callable[[], OneStream] | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.why = ""  # why the last collector ended
        self.trouble = ""  # why there are no readings now; empty while they come
        self._start = start
        self._notify = notify
        self._stream: OneStream | None = first
        self._pending = ""  # the line that readings come again; held back while collectors end again and again
        self._restarts = Restarts()
        self._begun = False
        self._heard_s = time.monotonic()
        self._next_s = 0.0  # time of the next start

    @property
    def waits(self) -> bool:
        """True if data is ready to be read."""
        return self._stream is not None and self._stream.waits

    @property
    def silent_s(self) -> float:
        """Seconds since the last frame."""
        return time.monotonic() - self._heard_s

    @property
    def due_s(self) -> float:
        """Seconds until the next start; infinite while a collector runs."""
        return float("inf") if self._stream is not None else max(0.0, self._next_s - time.monotonic())

    def fileno(self) -> int:
        """Descriptor of the collector's pipe; -1 between two collectors."""
        return -1 if self._stream is None else self._stream.fileno()

    def read(self, wait_s: float) -> list[Header | Frame] | None:
        """The items that come within ``wait_s``; None if the stream has ended."""
        try:
            if self._stream is None:
                if self._start is None:
                    return None
                time.sleep(min(wait_s, self.due_s))
                if self.due_s > 0.0:
                    return []
                self._restarts.begin()
                self._stream = self._start()
            items = self._stream.read(wait_s)
        except (OSError, UserError) as error:
            return self._end(str(error))
        if items is None:
            return self._end(self._stream.ending())
        for item in items:
            self._take(item)
        return items

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _take(self, item: Header | Frame) -> None:
        self._restarts.mark_gap(item)
        if not isinstance(item, Frame):
            return
        if self.trouble:
            self.trouble, self._pending = "", f"the collector runs again: {self.silent_s:.1f} s are missing"
        if self._pending and (not self._restarts.at_slowest or self._restarts.is_steady):
            self._notify(self._pending)
            self._pending = ""
        self._begun, self._heard_s = True, time.monotonic()

    def _end(self, why: str) -> list[Header | Frame] | None:
        """The collector has ended; what `read` returns."""
        self.close()
        self.why, self.trouble = why, f"the collector ended ({why})"
        if self._start is None:
            return None
        pause_s = self._restarts.end(why)
        if self._begun and not self._restarts.at_slowest:
            when = "from now on every" if self._restarts.failures == len(RESTART_S) else "in"
            self._notify(f"the collector ended: {why}; starting it again {when} {pause_s:g} s")
        self._next_s = time.monotonic() + pause_s
        return []
