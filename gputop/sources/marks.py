"""Markers that `gputop mark` drops from another shell: a socket that only its user, and root, can talk to."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from gputop.model.frame import Frame, Mark, SourceState
from gputop.sources import Beat, Settings, Unavailable
from gputop.sources.markers import MAX_BYTES, make_directory, peer_uid, remove_stale, unpack_mark
from gputop.system.privilege import as_invoking_user

MOST_A_TICK = 32  # markers taken in one look
MOST_A_SECOND = 100  # markers taken; more wait in the kernel, and their senders with them
MOST_WAITING = 128  # connections that the kernel keeps for us: the ranks of a job that all send at once
LOOK_EVERY_NS = 300_000_000
"""A marker brings its own time, so that looking seldom loses nothing."""
LATEST_NS = 60_000_000_000
"""A marker's own time is believed if it is no older than this."""
SILENT_NS = 1_000_000_000
"""Who has connected and sent nothing for so long is not waited for."""


class MarksSource:
    """``read`` adds what came since the last look to ``frame.marks``, with the time at which it was sent."""

    name = "marks"

    def __init__(self, _settings: Settings) -> None:
        self._socket: socket.socket | None = None
        self._path = ""
        self._owner = os.geteuid()
        self._due_ns = self._second = self._taken = 0
        self._callers: list[tuple[int, socket.socket]] = []
        """Who has connected and not yet been heard, and when it came."""

    def open(self) -> SourceState:
        """After `sudo gputop` the socket is that of the user who typed it. Raises Unavailable where it cannot be made."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with as_invoking_user() as self._owner:
                passed = self._bind(listening)
        except OSError as error:
            listening.close()
            raise Unavailable(f"no socket for markers: {error}", "set XDG_RUNTIME_DIR to a directory of your own") from None
        self._socket = listening
        reason = f"markers are taken in {os.path.dirname(self._path)}, for {passed[0]}" if passed else ""
        return SourceState(self.name, "ok", reason)

    def _bind(self, listening: socket.socket) -> list[str]:
        """What stood in the way of a better place. The kernel remembers who listens: whoever connects is told."""
        remove_stale(self._owner)
        folder, path, passed = make_directory(self._owner)
        try:
            name = f"marks-{os.getpid()}.sock"
            listening.bind(os.path.join(path, name))
            self._path = os.path.join(path, name)
            os.stat(name, dir_fd=folder, follow_symlinks=False)  # it lies in the directory that was looked at
            listening.listen(MOST_WAITING)
        finally:
            os.close(folder)
        return passed

    def read(self, beat: Beat, frame: Frame) -> None:
        """Take what has come."""
        if beat.t_ns < self._due_ns:
            return
        self._due_ns = beat.t_ns + LOOK_EVERY_NS
        if beat.t_ns // 1_000_000_000 != self._second:
            self._second, self._taken = beat.t_ns // 1_000_000_000, 0
        came = self._accept(beat.t_ns)
        if came > 1:
            self._due_ns = 0  # where some come at once, others may wait for room
        silent = []
        for since, caller in self._callers:
            if not self._hear(caller, frame) and beat.t_ns - since < SILENT_NS:
                silent.append((since, caller))
            else:
                caller.close()
        self._callers = silent

    def _accept(self, now: int) -> int:
        """How many came; only root and the user whose collector this is are heard."""
        assert self._socket is not None
        came = 0
        while len(self._callers) < MOST_A_TICK and self._taken < MOST_A_SECOND:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                break
            came, self._taken = came + 1, self._taken + 1
            if _may_speak(caller, self._owner):
                caller.setblocking(False)
                self._callers.append((now, caller))
            else:
                caller.close()
        return came

    def _hear(self, caller: socket.socket, frame: Frame) -> bool:
        """Whether there is nothing more to wait for."""
        try:
            mark = unpack_mark(caller.recv(MAX_BYTES))
        except BlockingIOError:
            return False
        except OSError:
            return True
        now = time.monotonic_ns()
        if mark is not None:
            frame.marks.append(mark if now - LATEST_NS < mark.t_ns <= now else Mark(now, mark.text))
        return True

    def close(self) -> None:
        """Take the socket away, and a directory that was made for it alone."""
        for _since, caller in self._callers:
            caller.close()
        self._callers = []
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with suppress(OSError):
                os.unlink(self._path)
            folder = os.path.dirname(self._path)
            if os.path.basename(folder).startswith(f"gputop-{self._owner}-"):
                with suppress(OSError):
                    os.rmdir(folder)


def _may_speak(caller: socket.socket, owner: int) -> bool:
    try:
        return peer_uid(caller) in (0, owner)
    except OSError:
        return False
