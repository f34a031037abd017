"""`r`: record the stream to a file as it comes. Frames arrive in the feed's thread, keys in the screen's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gputop.model.frame import Frame, Header
from gputop.session.session import Session
from gputop.system.errors import UserError
from gputop.system.text import file_size

if TYPE_CHECKING:
    from gputop.recording.writer import Writer


class Recorder:
    """At most one recording at a time. Where it cannot go on it ends, `problem` says why, and what was written stays readable."""

    def __init__(self) -> None:
        self.problem = ""  # why the last recording ended by itself; empty where it did not, or once the screen has said it
        self.broke = False  # whether the last recording ended by itself; False once another begins
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._last_ns = 0

    @property
    def size(self) -> int | None:
        """Bytes written so far, None while nothing is recorded."""
        writer = self._writer
        return None if writer is None else writer.size

    def start(self, path: str, session: Session) -> None:
        """Record to a new file, from the last key frame on, so that it is whole from its first frame. Raises UserError."""
        from gputop.recording.writer import Writer
        from gputop.session.findings import Account

        with self._lock:
            with session.lock:
                header, past, account = session.ring.header, session.ring.recent(), Account(session.engine)
            if not past:
                raise UserError("nothing to record yet")
            self.problem, self.broke = "", False

            def tell() -> bytes:
                with session.lock:
                    return account.tell()

            self._writer = Writer(path, header, tell)
            self._last_ns = 0
            for frame in past:
                self._add(frame)

    def take(self, item: Header | Frame) -> None:
        """Record an item of the stream. A collector that was started again goes on in the same file, unless the machine was rebooted."""
        if self._writer is None:
            return
        with self._lock:
            if isinstance(item, Frame):
                self._add(item)
            else:
                self._date(item)

    def stop(self) -> str:
        """End the recording; gives its path and size in words, empty where nothing was recorded."""
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is None:
                return ""
            writer.close()
            return f"{writer.path} ({file_size(writer.size)}){f'; {writer.problem}' if writer.problem else ''}"

    def _add(self, frame: Frame) -> None:
        if self._writer is None or frame.t_ns <= self._last_ns:
            return
        self._last_ns = frame.t_ns
        try:
            self._writer.add(frame)
        except UserError as error:
            self._end(str(error))

    def _date(self, header: Header) -> None:
        if self._writer is None:
            return
        if header.boot_id != self._writer.header.boot_id:
            self._end("the recorded machine was rebooted")
            return
        try:
            self._writer.restate(self._writer.header.dated(header))
        except UserError as error:
            self._end(str(error))

    def _end(self, problem: str) -> None:
        writer, self._writer = self._writer, None
        self.problem, self.broke = problem, True
        if writer is not None:
            writer.close()
