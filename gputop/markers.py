"""Where `gputop mark` and the collectors of one user meet: a directory of his own with a datagram socket per collector."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator

import msgspec

from gputop.frame import Mark
from gputop.temporary import tempfile

MAX_TEXT = 200
"""Characters of a marker."""
MAX_BYTES = 2048
ELSEWHERE = "/proc/"
"""How the path of a socket begins that lies in other namespaces than ours."""

_LISTENING = re.compile(r"(/[^\n]*/gputop(?:-\d+)?/marks-\d+\.sock)$", re.MULTILINE)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Mark)


def pack_mark(mark: Mark) -> bytes:
    """A datagram."""
    return _encoder.encode(Mark(mark.t_ns, mark.text[:MAX_TEXT]))


def unpack_mark(data: bytes) -> Mark | None:
    """The marker in a datagram, None where it holds none."""
    try:
        mark = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return Mark(mark.t_ns, mark.text[:MAX_TEXT])


def directory() -> str:
    """The user's own place for sockets: below XDG_RUNTIME_DIR, else below the directory for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.geteuid():
        return os.path.join(runtime, "gputop")
    return os.path.join(tempfile.gettempdir(), f"gputop-{os.geteuid()}")


def make_directory() -> str:
    """The directory, made with mode 0700; OSError where it cannot be ours alone."""
    path = directory()
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    if not _is_ours_alone(path):
        raise PermissionError(f"{path} is not a directory of mode 0700 that belongs to us")
    return path


def sockets() -> list[str]:
    """The sockets of collectors that may listen: the user's own; for root, everybody's."""
    here = {os.path.realpath(path) for path in (*glob.glob(os.path.join(glob.escape(directory()), "marks-*.sock")), *bound())}
    ours = [path for path in (*sorted(here), *elsewhere()) if os.geteuid() == 0 or _is_ours_alone(os.path.dirname(path))]
    # One that is here may be seen from a container too.
    return list({inode: path for path in reversed(ours) if (inode := _inode(path))}.values())


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


def elsewhere() -> Iterator[str]:
    """The same of containers, and of whoever has a /tmp of his own: through the root of a process there, as far as we may look into it."""
    seen = {_namespaces("self")}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if (where := _namespaces(pid)) and where not in seen:
            seen.add(where)
            yield from (f"{ELSEWHERE}{pid}/root{path}" for path in bound(pid))


def _namespaces(pid: str) -> tuple[str, str] | None:
    """Which files and which sockets that process sees, None where we may not know."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt"), os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _inode(path: str) -> tuple[int, int] | None:
    try:
        held = os.lstat(path)
    except OSError:
        return None
    return (held.st_dev, held.st_ino) if stat.S_ISSOCK(held.st_mode) else None


def _is_ours_alone(path: str) -> bool:
    try:
        held = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(held.st_mode) and held.st_uid == os.geteuid() and not held.st_mode & 0o077
