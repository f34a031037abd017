"""Kineto's protocol for traces on demand, on a socket in a job's own folder: a datagram is a head and a payload.

The head is ``{uint64 size; char type[32];}`` in native order. A job sends ``ctxt`` (``{int32 gpu; int32 pid; int64 jobid}``, answered by
an int32) and each second or so ``req``, ``{int32 kinds; int32 n; int64 jobid; int32 pids[n]}``, which is answered within 90 ms by ``req``
and the configuration of a trace, or nothing. Who sent it is what the kernel reports (SCM_CREDENTIALS): the pids are only what a job claims.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import stat
import struct
import subprocess
from contextlib import suppress
from typing import NamedTuple

from gputop.system.errors import Unavailable
from gputop.traces.environment import CLIENT, NAME, Job, bind_within

MOST_BYTES = 1 << 14  # of a datagram: a request is under 100
_HEAD = struct.Struct("@Q32s")
_REQUEST = struct.Struct("@iiq")
_CREDENTIALS = struct.Struct("3i")
_MOST_PIDS = 64  # that a request may claim; Kineto sends ten
_MOST_REFUSED = 64  # datagrams passed over at once: a job may send them faster than they are read (a choice)
_ADDRESS = re.compile(rf"{CLIENT}[0-9a-f-]{{36}}")
_SWEEPS = 'read -r over || rm -f "$1"'
"""The shell's command that removes the socket when gputop is killed: a line ends the shell, the end of the pipe has it remove the file."""
_IDLE = 2  # bit of the kinds: the job can take a trace now


class Asked(NamedTuple):
    """A job's question. ``idle``: False while it writes a trace. ``address``: the name of its socket in the folder, to answer to."""

    pid: int
    uid: int
    idle: bool
    address: str


class Answered(Unavailable):
    """Another program answers the jobs of a folder."""


class Desk:
    """Answers the jobs of one folder while it is open. ``job``: one of them. ``folder``: a descriptor of the folder."""

    def __init__(self, job: Job, folder: int) -> None:
        self._job = job
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._is_bound = False
        self._sweeper: subprocess.Popen[bytes] | None = None
        self.refused = 0  # datagrams that were no request of a job

    def __enter__(self) -> Desk:
        """Listen. Raises Unavailable if another program does."""
        try:
            self._listen()
        except OSError as error:
            self.__exit__()
            raise Unavailable(f"no socket can be made in the job's folder: {error.strerror}") from None
        except Unavailable:
            self.__exit__()
            raise
        return self

    def _listen(self) -> None:
        """Bind the socket to the very path that the job knows: a torch job ends at once if an answer comes from a socket with another name,
        even in the same folder."""
        if os.path.lexists(self._path(NAME)):
            if self._answers(self._path(NAME)):
                what = "another program answers this job: a gputop that takes a trace now, or dynolog"
                raise Answered(what, "wait until it has ended")
            os.unlink(NAME, dir_fd=self._folder)  # of a program that was killed
        self._sweeper = self._started_sweeper()
        bind_within(self._job, self._socket, f"{self._job.folder}/{NAME}")
        self._is_bound = True
        atexit.register(self.__exit__)
        if self._socket.getsockname() != f"{self._job.folder}/{NAME}" or not os.path.lexists(self._path(NAME)):
            raise Unavailable("the job's folder was exchanged")

    def _started_sweeper(self) -> subprocess.Popen[bytes] | None:
        """A shell that outlives a gputop that is killed, and removes the socket: one without a listener would hold each of the job's
        questions, and its end, up for 10 s. None where no process can be started."""
        with suppress(OSError):
            return subprocess.Popen(
                ["/bin/sh", "-c", _SWEEPS, "sh", self._path(NAME)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, pass_fds=[self._folder], start_new_session=True, cwd="/", env={"PATH": os.defpath},
            )  # fmt: skip
        return None

    @staticmethod
    def _answers(path: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(path)
            except OSError:
                return False
        return True

    def __exit__(self, *_: object) -> None:
        if self._is_bound:
            atexit.unregister(self.__exit__)
            with suppress(OSError):
                os.unlink(NAME, dir_fd=self._folder)
        self._socket.close()
        if self._sweeper is not None:
            with suppress(OSError):
                self._sweeper.communicate(b"\n")
            self._sweeper = None

    def fileno(self) -> int:
        """The socket's descriptor, for poll."""
        return self._socket.fileno()

    def next(self) -> Asked | None:
        """The next question that has come; None if there is none now."""
        for _ in range(_MOST_REFUSED):
            try:
                data, ancillary, _, sender = self._socket.recvmsg(MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                return None
            if (found := self._read(data, ancillary, sender)) is not None:
                return found
            self.refused += 1
        return None

    def _read(self, data: bytes, ancillary: list[tuple[int, int, bytes]], sender: object) -> Asked | None:
        """The question in a datagram; None if it is none. A ``ctxt`` is answered here."""
        address = os.path.basename(os.fsdecode(sender)) if isinstance(sender, (str, bytes)) else ""
        sent = next((body for level, kind, body in ancillary if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)), b"")
        if len(data) < _HEAD.size or len(sent) < _CREDENTIALS.size or not _ADDRESS.fullmatch(address):
            return None
        pid, uid, _ = _CREDENTIALS.unpack(sent[: _CREDENTIALS.size])
        size, kind = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if size != len(body) or pid <= 0 or uid != self._job.uid:
            return None
        if kind.rstrip(b"\0") == b"ctxt":
            self._send(address, b"ctxt", struct.pack("@i", 1))
            return None
        if kind.rstrip(b"\0") != b"req" or len(body) < _REQUEST.size:
            return None
        kinds, count, _ = _REQUEST.unpack_from(body)
        if not 0 <= count <= _MOST_PIDS or len(body) != _REQUEST.size + 4 * count:
            return None
        return Asked(pid, uid, bool(kinds & _IDLE), address)

    def answer(self, asked: Asked, config: str = "") -> bool:
        """Answer a question with the configuration of a trace, or with nothing; True if the answer was taken."""
        return self._send(asked.address, b"req", config.encode())

    def _send(self, address: str, kind: bytes, body: bytes) -> bool:
        try:
            if not stat.S_ISSOCK(os.stat(address, dir_fd=self._folder, follow_symlinks=False).st_mode):
                return False
            self._socket.sendto(_HEAD.pack(len(body), kind) + body, self._path(address))
        except OSError:
            return False
        return True

    def _path(self, name: str) -> str:
        """A path short enough for sun_path, and of no other mount namespace than the folder's."""
        return f"/proc/self/fd/{self._folder}/{name}"


def config(file: str, seconds: float, start_unix_ms: int = 0, with_stack: bool = False) -> str:
    """Kineto's configuration of one trace. ``file``: its path as the job names it, ``.json`` at the end; ``_PID`` is put before that.
    ``start_unix_ms``: when it begins, the same for all ranks; 0 for now.

    Kineto can count iterations, too, but ends such a trace after 0.5 s or another duration, and then it is empty (torch 2.13).
    """
    lines = [f"ACTIVITIES_LOG_FILE={file}", f"ACTIVITIES_DURATION_MSECS={round(seconds * 1000)}", "ACTIVITIES_WARMUP_PERIOD_SECS=0"]
    if start_unix_ms:
        lines.append(f"PROFILE_START_TIME={start_unix_ms}")
    if with_stack:
        lines.append("PROFILE_WITH_STACK=true")
    return "\n".join(lines) + "\n"
