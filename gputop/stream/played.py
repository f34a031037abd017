"""A recording played as if it were read now: its frames at their pace, its wall clock shifted to this one."""

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
from gputop.system.errors import UserError, starting

LATER_NS = 10_000_000_000  # ns that a recording may begin later for it to be waited for
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

    ``shift_s``: what is added to its wall clock, so that several are played together; None: its beginning is now. What is past then is
    left out but for `BEFORE_NS`, which is played at once.
    """

    def __init__(self, path: str, shift_s: float | None = None) -> None:
        recording = self._recording = open_recording(parts_of(path))
        now_ns, start_ns = time.time_ns(), recording.start_ns
        shift_ns = now_ns - recording.unix_ns_of(start_ns) if shift_s is None else int(shift_s * 1e9)
        self._now_ns = recording.t_ns_of(now_ns - shift_ns)  # of its clock, as this begins
        if shift_s is not None and (self._now_ns > recording.end_ns or self._now_ns < start_ns - LATER_NS):
            why = _covers(recording, self._now_ns)
            recording.close()
            raise UserError(why)
        self._begin_ns = recording.key_before(max(start_ns, min(self._now_ns, recording.end_ns) - BEFORE_NS))
        header = recording.header
        self._ready: deque[Header | Frame] = deque([replace(header, unix_ns=header.unix_ns + shift_ns)])
        self._reads, self._writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._play, name="play", daemon=True)
        with starting():
            self._thread.start()

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
        self._thread.join(1.0)
        self._recording.close()
        os.close(self._reads)

    def _play(self) -> None:
        ahead_ns = self._now_ns - time.monotonic_ns()
        try:
            for frame in self._recording.frames(self._begin_ns):
                if self._closing.wait(max(0.0, (frame.t_ns - ahead_ns - time.monotonic_ns()) / 1e9)):
                    return
                self._ready.append(frame)
                self._rouse()
        finally:
            os.close(self._writes)  # a reader that waits for more learns of the end

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
