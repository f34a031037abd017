"""Markers: `gputop mark` sends them to all collectors of one user; each listens at a socket in a directory of that user.

A socket's name proves nothing, since any user may bind one that fits. What counts is the kernel's answer about the connection
(SO_PEERCRED); both ends check it before they send or take anything.
"""

from __future__ import annotations

import glob
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from gputop.model.frame import SECOND_NS, Frame, Mark, SourceState
from gputop.sources import Beat, Settings, Unavailable
from gputop.system.decoding import BROKEN
from gputop.system.privilege import as_invoking_user
from gputop.system.text import clean

MAX_TEXT = 200  # characters of a marker
MAX_BYTES = 2048  # of a message: a marker of four bytes a character, and its time
ELSEWHERE = "/proc/"  # the paths of sockets in other namespaces begin with it
MOST_A_TICK = 32  # markers taken in one tick
MOST_A_SECOND = 100  # markers taken; more wait in the kernel, and their senders with them
MOST_WAITING = 128  # connections that the kernel queues: the ranks of a job that all send at once
LOOK_EVERY_NS = 300_000_000  # ns between two looks; a marker brings its own time, so a late look loses nothing
LATEST_NS = 60 * SECOND_NS  # ns: a marker's own time is believed if it is no older
SILENT_NS = SECOND_NS  # ns after which a sender that sends nothing is dropped
_MOST_ADDRESS = 107  # bytes of a socket's path (unix(7), sun_path)

_LISTENING = re.compile(r"(/[^\n]*/gputop(?:-\d+(?:-\w+)?)?/marks-\d+\.sock)$", re.MULTILINE)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Mark)


class MarksSource:
    """Adds the markers that came since the last look to ``frame.marks``, with the time at which each was sent."""

    name = "marks"

    def __init__(self, _settings: Settings) -> None:
        self._socket: socket.socket | None = None
        self._path = ""
        self._owner = os.geteuid()
        self._due_ns = self._second = self._taken = 0
        self._senders: list[tuple[int, socket.socket]] = []  # connections that have not sent their marker yet, and when each came

    def open(self) -> SourceState:
        """Bind the socket; after `sudo gputop` it belongs to the invoking user. Raises Unavailable."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with as_invoking_user() as self._owner:
                refused = self._bind(listening)
        except OSError as error:
            listening.close()
            raise Unavailable(f"no socket for markers: {error}", "set XDG_RUNTIME_DIR to a directory of your own") from None
        self._socket = listening
        reason = f"markers are taken in {os.path.dirname(self._path)}, for {refused[0]}" if refused else ""
        return SourceState(self.name, "ok", reason)

    def _bind(self, listening: socket.socket) -> list[str]:
        """Bind in the best directory; returns why better ones were refused. A sender learns from the kernel which user listens."""
        remove_stale(self._owner)
        folder, path, refused = make_directory(self._owner)
        try:
            name = f"marks-{os.getpid()}.sock"
            listening.bind(os.path.join(path, name))
            self._path = os.path.join(path, name)
            os.stat(name, dir_fd=folder, follow_symlinks=False)  # it lies in the directory that was checked
            listening.listen(MOST_WAITING)
        finally:
            os.close(folder)
        return refused

    def read(self, beat: Beat, frame: Frame) -> None:
        """Take the markers that have come."""
        if beat.t_ns < self._due_ns:
            return
        self._due_ns = beat.t_ns + LOOK_EVERY_NS
        if beat.t_ns // SECOND_NS != self._second:
            self._second, self._taken = beat.t_ns // SECOND_NS, 0
        if self._accept(beat.t_ns) > 1:
            self._due_ns = 0  # where several come at once, more may be queued
        silent = []
        for since, sender in self._senders:
            if not self._receive(sender, frame) and beat.t_ns - since < SILENT_NS:
                silent.append((since, sender))
            else:
                sender.close()
        self._senders = silent

    def _accept(self, now: int) -> int:
        """Accept connections; returns their number. Only root and the user of this collector may send."""
        assert self._socket is not None
        came = 0
        while len(self._senders) < MOST_A_TICK and self._taken < MOST_A_SECOND:
            try:
                sender, _ = self._socket.accept()
            except OSError:
                break
            came, self._taken = came + 1, self._taken + 1
            if _may_send(sender, self._owner):
                sender.setblocking(False)
                self._senders.append((now, sender))
            else:
                sender.close()
        return came

    def _receive(self, sender: socket.socket, frame: Frame) -> bool:
        """Take a sender's marker; False if it has sent none yet."""
        try:
            mark = unpack_mark(sender.recv(MAX_BYTES))
        except BlockingIOError:
            return False
        except OSError:
            return True
        now = time.monotonic_ns()
        if mark is not None:
            frame.marks.append(mark if now - LATEST_NS < mark.t_ns <= now else Mark(now, mark.text))
        return True

    def close(self) -> None:
        """Remove the socket, and a directory that was made for it alone."""
        for _since, sender in self._senders:
            sender.close()
        self._senders = []
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with suppress(OSError):
                os.unlink(self._path)
            folder = os.path.dirname(self._path)
            if os.path.basename(folder).startswith(f"gputop-{self._owner}-"):
                with suppress(OSError):
                    os.rmdir(folder)


def _may_send(sender: socket.socket, owner: int) -> bool:
    try:
        return peer_uid(sender) in (0, owner)
    except OSError:
        return False


def pack_mark(mark: Mark) -> bytes:
    """The message of a marker."""
    return _encoder.encode(Mark(mark.t_ns, mark.text[:MAX_TEXT]))


def unpack_mark(data: bytes) -> Mark | None:
    """The marker in a message, without control characters; None if it holds none."""
    try:
        mark = _decoder.decode(data)
    except BROKEN:
        return None
    return Mark(mark.t_ns, clean(mark.text, MAX_TEXT))


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end (SO_PEERCRED). Raises OSError if the kernel does not know."""
    _pid, uid, _gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def places(uid: int) -> list[str]:
    """Directories in which a user's sockets may lie, best first; some do not exist."""
    runtime = [path for path in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{uid}") if path and _belongs_to(path, uid)]
    below = [os.path.join(path, "gputop") for path in runtime]
    made = [os.path.join(path, f"gputop-{uid}") for path in _temporary()]
    return list(dict.fromkeys(path for path in (*below, *made) if _fits(path)))


def make_directory(uid: int) -> tuple[int, str, list[str]]:
    """A directory that only ``uid`` may enter: its descriptor, its path, and why better ones were refused.

    If another user has taken the usual name in /tmp, one with a random name is made. Raises OSError.
    """
    refused: list[str] = []
    for path in places(uid):
        folder = _make_own(path, uid)
        if isinstance(folder, int):
            return folder, path, refused
        refused.append(f"{path}: {folder}")
    path = os.path.join(_temporary()[-1], f"gputop-{uid}-{os.urandom(4).hex()}")
    os.mkdir(path, 0o700)
    return open_own(path, uid), path, refused


def _temporary() -> list[str]:
    """Directories for temporary files, the user's choice first; the last has room for a random name in a socket's address.

    As `tempfile` chooses, which imports compressors: half a MiB that the collector has no other use for.
    """
    named = (os.path.abspath(path) for name in ("TMPDIR", "TEMP", "TMP") if (path := os.environ.get(name)))
    usable = (path for path in (*named, "/tmp", "/var/tmp") if os.path.isdir(path) and os.access(path, os.W_OK, effective_ids=True))
    chosen = next(usable, "/tmp")
    return [chosen] if _fits(os.path.join(chosen, "gputop-4294967295-12345678")) else [chosen, "/tmp"]


def _fits(folder: str) -> bool:
    """True if the path of a socket in it fits into an address."""
    return len(os.fsencode(folder)) + len("/marks-4194304.sock") <= _MOST_ADDRESS


def _make_own(path: str, uid: int) -> int | str:
    """The directory's descriptor, or why it is refused."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        return open_own(path, uid)
    except OSError as error:
        return error.strerror or "failed"


def open_own(path: str, uid: int) -> int:
    """A descriptor of a directory of mode 0700 that belongs to ``uid``; links are not followed. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    held = os.fstat(folder)
    if held.st_uid == uid and not held.st_mode & 0o077:
        return folder
    os.close(folder)
    raise PermissionError(1, f"belongs to uid {held.st_uid}, mode {held.st_mode & 0o777:04o}, and should be ours alone, mode 0700")


def remove_stale(uid: int) -> None:
    """Remove a user's sockets without a living collector (`kill -9`), and the directories that were made for one socket alone."""
    made = glob.glob(os.path.join(glob.escape(_temporary()[-1]), f"gputop-{uid}-*"))
    for path in (*places(uid), *made):
        try:
            folder = open_own(path, uid)
        except OSError:
            continue
        try:
            with suppress(OSError):
                for name in filter(_is_name, os.listdir(folder)):
                    _remove_if_stale(folder, name)
            if path in made:
                with suppress(OSError):  # not empty
                    os.rmdir(path)
        finally:
            os.close(folder)


def _remove_if_stale(folder: int, name: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as asking:
        try:
            asking.connect(f"/proc/self/fd/{folder}/{name}")
        except ConnectionRefusedError:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
        except OSError:
            pass


def _is_name(name: str) -> bool:
    return name.startswith("marks-") and name.endswith(".sock")


def sockets(owners: frozenset[int]) -> list[tuple[str, int]]:
    """(path, O_PATH descriptor) of each socket that may be a collector's and belongs to one of ``owners``.

    Connect through the descriptor, for the path may lead to another file later. The caller closes it.
    """
    own = [path for uid in owners for place in places(uid) for path in glob.glob(os.path.join(glob.escape(place), "marks-*.sock"))]
    found: dict[tuple[int, int], tuple[str, int]] = {}
    for path in (*sorted(own), *bound(), *elsewhere(owners)):
        if (opened := _open_socket(path, owners)) is None:
            continue
        inode, descriptor = opened
        if inode in found:  # a container may see the same socket
            os.close(descriptor)
        else:
            found[inode] = path, descriptor
    return list(found.values())


def _open_socket(path: str, owners: frozenset[int]) -> tuple[tuple[int, int], int] | None:
    """((device, inode), descriptor)."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    held = os.fstat(descriptor)
    if stat.S_ISSOCK(held.st_mode) and held.st_uid in owners:
        return (held.st_dev, held.st_ino), descriptor
    os.close(descriptor)
    return None


def bound(pid: str = "self") -> list[str]:
    """Paths of collectors' sockets in the network namespace of ``pid`` (/proc/PID/net/unix).

    It finds collectors with another XDG_RUNTIME_DIR or TMPDIR than ours, such as a job's and a shell's.
    """
    try:
        with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            return _LISTENING.findall(file.read())
    except OSError:
        return []


def elsewhere(owners: frozenset[int]) -> Iterator[str]:
    """Paths of collectors' sockets in containers and private /tmp directories, through the root of a process there.

    Only processes of ``owners`` lead there: in another user's mount namespace a socket of ours may stand under any name.
    """
    seen = {_namespaces("self")}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if _owner(f"/proc/{pid}") in owners and (where := _namespaces(pid)) and where not in seen:
            seen.add(where)
            yield from (f"{ELSEWHERE}{pid}/root{path}" for path in bound(pid))


def _owner(path: str) -> int:
    """uid of the owner, -1 if the file is gone."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return -1


def _namespaces(pid: str) -> tuple[str, str] | None:
    """The process's mount and network namespaces; None if they may not be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt"), os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _belongs_to(path: str, uid: int) -> bool:
    """True if the path is a directory of that user into which no other user may write."""
    try:
        held = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(held.st_mode) and held.st_uid == uid and not held.st_mode & 0o022
