"""Where `gputop mark` and the collectors of one user meet: a socket per collector, in a directory of that user's own.

Names prove nothing: anybody may bind one that fits. Who is at the other end is what the kernel says of the connection (SO_PEERCRED), and
both ends look before they send or take anything.
"""

from __future__ import annotations

import glob
import os
import re
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from gputop.model.frame import Mark
from gputop.system.text import clean

MAX_TEXT = 200  # characters of a marker
MAX_BYTES = 2048  # of a message: a marker of four bytes a character, and its time
_MOST_ADDRESS = 107  # bytes of a socket's path (unix(7), sun_path)
ELSEWHERE = "/proc/"
"""How the path of a socket begins that lies in other namespaces than ours."""

_LISTENING = re.compile(r"(/[^\n]*/gputop(?:-\d+(?:-\w+)?)?/marks-\d+\.sock)$", re.MULTILINE)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Mark)


def pack_mark(mark: Mark) -> bytes:
    """A message."""
    return _encoder.encode(Mark(mark.t_ns, mark.text[:MAX_TEXT]))


def unpack_mark(data: bytes) -> Mark | None:
    """The marker in a message, without control characters; None where it holds none."""
    try:
        mark = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return Mark(mark.t_ns, clean(mark.text, MAX_TEXT))


def peer_uid(connection: socket.socket) -> int:
    """Who connected, or listened, at the other end (SO_PEERCRED). Raises OSError where the kernel does not know."""
    _pid, uid, _gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def places(uid: int) -> list[str]:
    """The directories in which that user's sockets may lie, the best first; some are not there."""
    runtime = [path for path in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{uid}") if path and _belongs_to(path, uid)]
    below = [os.path.join(path, "gputop") for path in runtime]
    made = [os.path.join(path, f"gputop-{uid}") for path in _temporary()]
    return list(dict.fromkeys(path for path in (*below, *made) if _fits(path)))


def make_directory(uid: int) -> tuple[int, str, list[str]]:
    """A directory that only ``uid``, as whom we act, may enter: its descriptor, its path, and what stood in the way of better ones.

    Whoever takes the usual name in /tmp before us has won nothing: another one is made. Raises OSError where there is no room for any.
    """
    passed: list[str] = []
    for path in places(uid):
        folder = _make_own(path, uid)
        if isinstance(folder, int):
            return folder, path, passed
        passed.append(f"{path}: {folder}")
    path = tempfile.mkdtemp(prefix=f"gputop-{uid}-", dir=_temporary()[-1])
    return open_own(path, uid), path, passed


def _temporary() -> list[str]:
    """Directories for temporary files, the user's choice first; in the last there is room for a longer name."""
    chosen = tempfile.gettempdir()
    return [chosen] if _fits(os.path.join(chosen, "gputop-4294967295-12345678")) else [chosen, "/tmp"]


def _fits(folder: str) -> bool:
    """Whether the address of a socket holds the name of one in it."""
    return len(os.fsencode(folder)) + len("/marks-4194304.sock") <= _MOST_ADDRESS


def _make_own(path: str, uid: int) -> int | str:
    """Its descriptor, or what is wrong with it."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        return open_own(path, uid)
    except OSError as error:
        return error.strerror or "failed"


def open_own(path: str, uid: int) -> int:
    """A descriptor of a directory of mode 0700 that belongs to ``uid``; a link is not followed. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    held = os.fstat(folder)
    if held.st_uid == uid and not held.st_mode & 0o077:
        return folder
    os.close(folder)
    raise PermissionError(1, f"belongs to uid {held.st_uid}, mode {held.st_mode & 0o777:04o}, and should be ours alone, mode 0700")


def remove_stale(uid: int) -> None:
    """Take away that user's sockets whose collectors are gone (`kill -9`), and directories that were made for such a one alone."""
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
    """(path, descriptor opened with O_PATH) of each socket that may be a collector's and belongs to one of ``owners``.

    The descriptor is of the file that was looked at: connect through it, whatever stands at the path by then. The caller closes it.
    """
    own = [path for uid in owners for place in places(uid) for path in glob.glob(os.path.join(glob.escape(place), "marks-*.sock"))]
    found: dict[tuple[int, int], tuple[str, int]] = {}
    for path in (*sorted(own), *bound(), *elsewhere(owners)):
        if (opened := _open_socket(path, owners)) is None:
            continue
        inode, descriptor = opened
        if inode in found:  # one that is here may be seen from a container too
            os.close(descriptor)
        else:
            found[inode] = path, descriptor
    return list(found.values())


def _open_socket(path: str, owners: frozenset[int]) -> tuple[tuple[int, int], int] | None:
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
    """Where the kernel says that collectors listen in that process's network namespace (/proc/PID/net/unix): their XDG_RUNTIME_DIR and
    TMPDIR may be others than ours.

    A job's are, beside those of the shell that gputop was started from.
    """
    try:
        with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            return _LISTENING.findall(file.read())
    except OSError:
        return []


def elsewhere(owners: frozenset[int]) -> Iterator[str]:
    """The same of containers, and of whoever has a /tmp of their own: through the root of a process there, as far as we may look.

    The process is one of ``owners``, as a collector is: where a stranger mounts what he likes, any socket of ours may stand under a name
    that fits.
    """
    seen = {_namespaces("self")}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if _owner(f"/proc/{pid}") in owners and (where := _namespaces(pid)) and where not in seen:
            seen.add(where)
            yield from (f"{ELSEWHERE}{pid}/root{path}" for path in bound(pid))


def _owner(path: str) -> int:
    """-1 where there is nothing any more."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return -1


def _namespaces(pid: str) -> tuple[str, str] | None:
    """Which files and which sockets that process sees, None where we may not know."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt"), os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _belongs_to(path: str, uid: int) -> bool:
    """A directory of that user's into which nobody else may write."""
    try:
        held = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(held.st_mode) and held.st_uid == uid and not held.st_mode & 0o022
