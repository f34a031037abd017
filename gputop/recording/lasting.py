"""A recording that outlasts trouble with its disk: it leaves room free, pauses, resumes when it can, and reports what is missing."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from gputop.model.board import Board
from gputop.model.frame import Frame, Header, Mark
from gputop.recording.keyframe import key_frame
from gputop.recording.writer import DiskError, Rotation
from gputop.system.errors import UserError
from gputop.system.text import clean, file_size

FREE_SHARE = 0.15  # of a disk's size is left free; journald.conf(5), SystemKeepFree=
MOST_FREE_BYTES = 4 << 30  # and so much at most; journald.conf(5), SystemKeepFree=
FREE_OF_LEFT = 0.5  # of what was free when it began is left free at most, so that a disk that is nearly full takes something; a choice
RESUME_SHARE = 1.125  # of what is left free must be free to go on, or it would soon pause again; a choice
LOOK_S = 1.0  # s between two looks at what is free; a choice
TRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)  # s until it is tried to go on after an error, the last one repeats; a choice
MOST_MARKS = 1000  # markers that are kept while nothing can be written; a choice


class Lasting:
    """Writes frames into a `Rotation`, whenever that takes them. ``tell`` prints a line as a pause begins, and one as it ends."""

    def __init__(self, rotation: Rotation, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.rotation = rotation
        self._tell = tell
        self._clock = clock
        self.paused = ""  # why nothing is written now; empty while all is
        self._since_ns = self._last_ns = 0  # times of the last frame that is written, and of the last that came
        self._dropped: tuple[Frame, Board] | None = None  # the last frame that was not written
        self._marks: deque[Mark] = deque(maxlen=MOST_MARKS)  # of the frames that were not written
        self._try_s = 0.0  # when it may be tried to go on
        self._tries = 0
        self._next_file = False  # whether only the next file can take more
        self._missing_s = 0.0
        self._reasons: dict[str, None] = {}
        self._heard_s = self._looked_s = clock()  # when a frame came last, and when it was looked what is free
        size, self._free = _room(rotation.writer.path)
        self._left_free = int(min(FREE_SHARE * size, MOST_FREE_BYTES, FREE_OF_LEFT * self._free))  # bytes

    def add(self, frame: Frame, board: Board) -> None:
        """Write a frame, which is the last that ``board`` has taken in; where that cannot be it is dropped."""
        self._since_ns = self._since_ns or frame.t_ns
        if not self.paused and (short := self._short_of_room(self._left_free)):
            self._try(self.rotation.flush)
            self._pause(self.paused or short)
        if self.paused:
            self._dropped = frame, board
            self._marks += frame.marks
            if self._clock() >= self._try_s and not self._short_of_room(self._left_free * RESUME_SHARE):
                self._resume(frame, board, self._tell)
        else:
            for reason in (mark.gap_reason for mark in frame.marks if mark.gap_reason):
                self.miss((frame.t_ns - self._last_ns) / 1e9, reason)
            self._try(lambda: self.rotation.add(frame))
        self._last_ns, self._heard_s = frame.t_ns, self._clock()

    def restate(self, header: Header) -> None:
        """Take a header again: with corrected clocks, or that of a collector that was restarted."""
        known = self.rotation.header
        if header.boot_id != self.rotation.header.boot_id:  # its clock is another: a file has one
            self._try(self.rotation.flush)
            self.miss(self._clock() - self._heard_s, "the machine was restarted")
            self.rotation.header, self._next_file, self._since_ns = header, True, 0
            self._pause("the machine was restarted")
        elif self.paused:
            self.rotation.header = known.dated(header)
        else:
            self._try(lambda: self.rotation.restate(known.dated(header)))

    def close(self) -> None:
        """Write what can be written, also into what is left free, and close the file."""
        if self.paused and self._dropped is not None:
            self._resume(*self._dropped, lambda _: None)
        if self.paused:
            self.miss((self._last_ns - self._since_ns) / 1e9, self.paused)
        self.rotation.close()

    def miss(self, seconds: float, reason: str) -> None:
        """Count what is missing."""
        self._missing_s += seconds
        self._reasons[reason] = None

    @property
    def missing(self) -> str:
        """Seconds that are missing, and why, as text; empty if none are."""
        return f"{self._missing_s:.1f} s are missing ({'; '.join(self._reasons)})" if self._reasons else ""

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except UserError as error:
            self._next_file = isinstance(error, DiskError) and error.ends_file
            self._pause(error.reason if isinstance(error, DiskError) else str(error))
        self._since_ns = max(self._since_ns, self.rotation.end_ns)

    def _pause(self, reason: str) -> None:
        if not self.paused:
            self.paused, self._tries, self._try_s = reason, 0, self._clock()
            if not self._next_file and self.rotation.writer.may_grow:
                self._wait()
            self._tell(f"recording to {clean(self.rotation.writer.path)} pauses: {reason}; it goes on when it can")

    def _wait(self) -> None:
        self._try_s = self._clock() + TRY_S[min(self._tries, len(TRY_S) - 1)]
        self._tries += 1

    def _resume(self, frame: Frame, board: Board, tell: Callable[[str], None]) -> None:
        """Go on with a frame, if that can be written."""
        since_ns = self._since_ns or frame.t_ns
        gap = Mark.of_gap(since_ns, frame.t_ns, self.paused)
        try:
            self.rotation.resume(self._next_file)
            self._next_file = False
            self.rotation.add(replace(key_frame(board, frame), marks=[gap, *self._marks]))
            self.rotation.flush()
        except UserError as error:
            self._next_file |= isinstance(error, DiskError) and error.ends_file
            self._wait()
            return
        self.miss((frame.t_ns - since_ns) / 1e9, self.paused)
        self.paused, self._dropped, self._since_ns = "", None, frame.t_ns
        self._marks.clear()
        tell(f"recording goes on in {clean(self.rotation.writer.path)}: {(frame.t_ns - since_ns) / 1e9:.1f} s are missing")

    def _short_of_room(self, least: float) -> str:
        """The reason to stop if fewer bytes than ``least`` are free; empty if enough are, or if that is not known."""
        if self._clock() - self._looked_s >= LOOK_S:
            self._looked_s, self._free = self._clock(), _room(self.rotation.writer.path)[1]
        return f"No space left on device but the {file_size(self._left_free)} that it leaves free" if self._free < least else ""


def _room(path: str) -> tuple[float, float]:
    """(bytes of the disk that ``path`` is on, free bytes); infinite if the file system does not report them."""
    try:
        disk = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return float("inf"), float("inf")
    if not disk.f_blocks:
        return float("inf"), float("inf")
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
