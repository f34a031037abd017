"""A recording played as a stream: its frames at their pace, as if it were read now, or by a clock that may stand and run faster."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from glob import escape, glob

from msgspec.structs import replace

from gputop.model.frame import Frame, Header
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.stream.playback import PlayedClock
from gputop.system.errors import UserError, starting

LATER_NS = 10_000_000_000  # ns that a recording may begin later for it to be waited for
MOST_READY = 1024  # frames that wait to be taken: a reader that cannot keep up falls behind the clock (a choice)
STAYS_S = 2.0  # s of ours that a clock has to be stopped at the end: it is looked at twice a second
FULL_S = 0.05  # s until there may be room again
BEFORE_NS = 10_000_000_000  # ns before the moment of now, so that the diagnosis knows where it is: a few of its windows


def parts_of(path: str) -> list[str]:
    """The files of the rotation that a file belongs to, in order: ``a.gputop``, ``a.2.gputop`` …"""
    stem = re.sub(r"(?:\.\d+)?\.gputop$", "", path)
    others = ((re.fullmatch(r"\.(\d+)\.gputop", other[len(stem) :]), other) for other in glob(f"{escape(stem)}.*.gputop"))
    numbered = {int(found[1]): other for found, other in others if found}
    first = f"{stem}.gputop"
    known = [first] if os.path.exists(first) or not numbered else []
    return [*known, *(numbered[number] for number in sorted(numbered))] if path.endswith(".gputop") else [path]


class PlayedStream:
    """Reads like `gputop.stream.child.ChildStream`. Raises UserError if the file cannot be opened, or no thread is to be had.

    ``shift_s``: what is added to its wall clock, so that several are played together as if all happened now; None: its beginning is now.
    ``clock``: instead of that its times stay as they are, and it is played by this clock. What is past then is left out but for
    `BEFORE_NS`, which is played at once.
    """

    def __init__(self, path: str, shift_s: float | None = None, clock: PlayedClock | None = None) -> None:
        recording = self._recording = open_recording(parts_of(path))
        now_s, start_ns = time.time(), recording.start_ns
        is_dated = shift_s is not None or clock is not None
        if shift_s is None:
            shift_s = 0.0 if clock is not None else now_s - recording.unix_ns_of(start_ns) / 1e9
        self.clock = clock or PlayedClock(now_s, now_s - shift_s)
        now_ns = recording.t_ns_of(int(self.clock.at(now_s) * 1e9))
        if is_dated and (now_ns > recording.end_ns or now_ns < start_ns - LATER_NS):
            why = _covers(recording, now_ns)
            recording.close()
            raise UserError(why)
        self._begin_ns = recording.key_before(max(start_ns, min(now_ns, recording.end_ns) - BEFORE_NS))
        header = recording.header
        self._ready: deque[Header | Frame] = deque([replace(header, unix_ns=header.unix_ns + int(shift_s * 1e9))])
        self._is_clocked = clock is not None
        self._turned = threading.Event()  # the clock is another, or the end has come
        self._reads, self._writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._play, name="play", daemon=True)
        with starting():
            self._thread.start()

    def play(self, clock: PlayedClock) -> None:
        """Go on by another clock; what was played stays played."""
        self.clock = clock
        self._turned.set()

    def fileno(self) -> int:
        """Descriptor of the pipe, for a caller that waits for several things."""
        return self._reads

    @property
    def waits(self) -> bool:
        """True if there is something to read."""
        return bool(self._ready)

    def read(self, wait_s: float) -> list[Header | Frame] | None:
        """Items that have come; None when all have. ``wait_s``: for a caller that waits for nothing else."""
        if not self._ready and self._thread.is_alive():
            self._closing.wait(wait_s)
        try:
            is_over = not os.read(self._reads, 1 << 16)
        except BlockingIOError:
            is_over = False
        if is_over and not self._ready:
            return None
        return [self._ready.popleft() for _ in range(len(self._ready))]

    def ending(self) -> str:
        """The reason why the stream has ended."""
        return "the recording is at its end"

    def close(self) -> None:
        """Stop playing."""
        self._closing.set()
        self._turned.set()
        self._thread.join(1.0)
        self._recording.close()
        os.close(self._reads)

    def _play(self) -> None:
        try:
            for frame in self._recording.frames(self._begin_ns):
                self._await(self._recording.unix_ns_of(frame.t_ns) / 1e9)
                if self._closing.is_set():
                    return
                self._ready.append(frame)
                self._rouse()
            if self._is_clocked:  # the last moment stays for a clock that is stopped there
                self._await(self._recording.unix_ns_of(self._recording.end_ns) / 1e9 + STAYS_S * max(1.0, self.clock.speed))
        finally:
            os.close(self._writes)  # a reader that waits for more learns of the end

    def _await(self, unix_s: float) -> None:
        """Wait until it is this time by the clock, and there is room; or until the end."""
        while not self._closing.is_set():
            self._turned.clear()
            wait_s = self.clock.wait_s(unix_s, time.time())
            if wait_s is not None and wait_s <= 0.0:
                if len(self._ready) < MOST_READY:
                    return
                wait_s = FULL_S
            self._turned.wait(wait_s)

    def _rouse(self) -> None:
        try:
            os.write(self._writes, b"!")
        except BlockingIOError:
            pass


def _covers(recording: Recording, now_ns: int) -> str:
    """Why nothing of a recording is played at a moment of its clock, in the wall clock's hours."""
    moments = (recording.start_ns, recording.end_ns, now_ns)
    begin, end, now = (time.localtime(recording.unix_ns_of(t_ns) // 1_000_000_000) for t_ns in moments)
    form = "%H:%M" if begin[:3] == end[:3] == now[:3] else "%d %b %H:%M"
    span = f"its recording covers {time.strftime(form, begin)}–{time.strftime(form, end)}"
    return f"{span}, and this is {time.strftime(form, now)}"
