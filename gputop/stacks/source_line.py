"""The source text of a frame's line, read from the file as the process itself sees it.

A file is read only if it is regular, of bounded size, and readable for the process's owner: a process may invent a file name, and must not
show another user's secrets with it. So root reads with the owner's rights (the folders on the way count too). A thread does the
reading and is abandoned at the deadline: source on a dead network mount must not hang the tool that explains the hang.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Sequence

from gputop.model.frame import Stack
from gputop.sources import parse
from gputop.sources.files import read_once
from gputop.stacks import frames
from gputop.stacks.frames import Line, own_part
from gputop.system.errors import start_thread
from gputop.system.privilege import take_file_rights

TIMEOUT_S = 0.15  # s for all lines of a set of stacks
MAX_LINES = 8  # frames of one stack with read source, innermost first
_MAX_FILE_BYTES, _MOST_BYTES = 4 << 20, 32 << 20  # bytes of one file, and of all files of a set
_MAX_TEXT = 200  # characters of a line
_SLACK_S = 1.0  # s by which a file may be newer than its process: scripts are written just before they run, starts come in clock ticks


def add_sources(stacks: Sequence[Stack], root: str = "/", timeout_s: float = TIMEOUT_S) -> None:
    """Add the source lines that can be read in time to each stack's ``source``."""
    texts = read_lines({(stack.pid, line) for stack in stacks for line in _worth_reading(stack)}, root, timeout_s)
    for stack in stacks:
        lines = _worth_reading(stack)
        stack.source.update({key(line): text for line in lines if (text := texts.get((stack.pid, line)))})


def read_lines(wanted: Collection[tuple[int, Line]], root: str = "/", timeout_s: float = TIMEOUT_S) -> dict[tuple[int, Line], str]:
    """(pid, frame) -> text of its line, for the lines that can be read within ``timeout_s``."""
    import queue

    found: queue.SimpleQueue[tuple[int, Line, str] | None] = queue.SimpleQueue()

    deadline = time.monotonic() + timeout_s

    def work() -> None:
        reader = _SourceReader(root)
        for pid, line in wanted:
            if time.monotonic() > deadline:
                break  # the caller has gone on
            found.put((pid, line, reader.text(pid, line)))
        found.put(None)

    if start_thread(work, "sources") is None:  # stacks come without source
        return {}
    texts: dict[tuple[int, Line], str] = {}
    try:
        while (item := found.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            texts[item[0], item[1]] = item[2]
    except queue.Empty:
        pass
    return texts


def key(line: Line) -> str:
    """``file:line``, as `gputop.model.frame.Stack.source` names a line."""
    return f"{line.file}:{line.line}"


def _worth_reading(stack: Stack) -> list[Line]:
    """The frames of the user's code; in a stack without any, the innermost frame."""
    lines = [line for line in own_part([frames.parse(text) for text in stack.python]) if line.line]
    return [line for line in lines if not line.library][:MAX_LINES] or lines[:1]


class _SourceReader:
    """Reads each file once per user. Only for a thread of its own: as root the thread keeps the rights of the last owner."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.files: dict[tuple[str, str, int], tuple[bytes, float]] = {}
        self.left = _MOST_BYTES
        self._acts_as = os.geteuid()

    def text(self, pid: int, line: Line) -> str:
        """The stripped, bounded line, with a note if the file is newer than the process; empty if it cannot be read."""
        data, changed = self._file(pid, line.file)
        lines = data.split(b"\n", line.line)[: line.line] if 0 < line.line <= len(data) else []
        if len(lines) < line.line or not lines:
            return ""
        text = lines[-1].decode("utf-8", "replace").strip()[:_MAX_TEXT]
        return f"{text}  [file changed since the process started]" if text and changed > _started(pid, self.root) + _SLACK_S else text

    def _file(self, pid: int, name: str) -> tuple[bytes, float]:
        base = os.path.join(self.root, "proc", str(pid))
        place = "root" if name.startswith("/") else "cwd"
        try:
            owner = os.stat(base)
            home = os.readlink(f"{base}/{place}") + os.readlink(f"{base}/ns/mnt")
        except OSError:
            return b"", 0.0
        where = home, name, owner.st_uid
        if where not in self.files:
            most = min(_MAX_FILE_BYTES, self.left) if self._act_as(owner, base) else 0
            data, changed = _read(f"{base}/{place}/{name.lstrip('/')}", owner.st_uid, most)
            self.left -= len(data)
            self.files[where] = data, changed
        return self.files[where]

    def _act_as(self, owner: os.stat_result, base: str) -> bool:
        """Take the file rights of the process's owner, if this is root; returns whether the thread has no other rights now."""
        if os.geteuid() != 0 or owner.st_uid == self._acts_as:
            return True
        if not take_file_rights(owner.st_uid, owner.st_gid, _groups(base)):
            return False
        self._acts_as = owner.st_uid
        return True


def _read(path: str, owner: int, most: int) -> tuple[bytes, float]:
    """Content and mtime of a regular file of at most ``most`` bytes that all users, or ``owner``, may read; else empty."""
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b"", 0.0
    try:
        status = os.fstat(handle)  # before opening it: to open a device may have effects
        may_read = status.st_mode & stat.S_IROTH or status.st_uid == owner
        if not stat.S_ISREG(status.st_mode) or status.st_size > most or not may_read:
            return b"", 0.0
        with open(os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            return file.read(most) or b"", status.st_mtime
    except OSError:
        return b"", 0.0
    finally:
        os.close(handle)


def _groups(base: str) -> list[int]:
    """The supplementary groups of a process (Groups in /proc/PID/status)."""
    return list(map(int, parse.status_line(read_once(f"{base}/status", 1 << 20) or b"", b"Groups").split()))


def _started(pid: int, root: str) -> float:
    """Unix time of the process's start (/proc/PID/stat field 22); infinity if it has ended."""
    data = read_once(os.path.join(root, "proc", str(pid), "stat"), 1024)
    if not data:
        return float("inf")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + parse.stat(data).start_ticks / parse.CLOCK_TICK_HZ
