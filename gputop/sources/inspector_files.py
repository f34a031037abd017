"""The newest file of one rank, found by the rank's variables and read from where the last reading ended.

Links are not followed, and the file must be a regular one of the rank's own user: a reader with root's rights reads nothing else.
"""

from __future__ import annotations

import os
import re
import stat
import time
from itertools import islice

from msgspec import Struct

from gputop.model.frame import SECOND_NS
from gputop.sources import Unavailable, parse
from gputop.sources.files import read_once
from gputop.sources.inspector_lines import Lines, Operation
from gputop.sources.inspector_text import Text

ENABLE, FOLDER = "NCCL_INSPECTOR_ENABLE", "NCCL_INSPECTOR_DUMP_DIR"
OFF = ("", "0")  # values of a switch
FIND_NS, RETRY_NS = 10 * SECOND_NS, 2 * SECOND_NS  # ns between two searches for a rank's file; while there is none
READ_BYTES, LINE_BYTES = 1 << 18, 1 << 16  # most bytes read of a file at a time, and of a line; verbose ones have 20 KB
MOST_FILES = 4096  # entries of a folder that are looked at
_INTERVAL, _TEXT, _OTLP = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "NCCL_INSPECTOR_PROM_DUMP", "NCCL_INSPECTOR_OTEL_EXPORT"
_JOBS, _LOCAL_RANKS = ("SLURM_JOB_ID", "SLURM_JOBID"), ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_WANTED = frozenset(name.encode() for name in (FOLDER, _INTERVAL, _TEXT, _OTLP, "HOSTNAME", *_JOBS, *_LOCAL_RANKS))
_ENVIRON_BYTES, _PATH_BYTES = 1 << 18, 4096
_FILE = re.compile(r"(.{1,255})-pid(\d{1,10})\.log", re.DOTALL)  # ``node7-pid1639453.log``: host, pid in the rank's own namespace
_PATH_FLAGS = os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY
_LIST_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Rank(Struct, frozen=True):
    """A process whose variables turn the Inspector on."""

    pid: int
    start_ticks: int
    ns_pid: int
    uid: int
    variables: dict[str, str]  # those of its library


class Tail:
    """The newest file of one rank, read from where the last reading ended."""

    def __init__(self, proc: str, rank: Rank) -> None:
        self.rank = rank
        self._folder = f"{proc}{rank.pid}/"
        self._lines = Lines(rank.ns_pid)
        self._fd = -1
        self._file = (0, 0)  # device and inode of what was opened
        self._why: Unavailable | None = None  # why the last search found no file
        self._offset = 0
        self._rest = b""
        self._skips = False  # whether what comes first is the rest of a line whose begin was not read
        self._find_ns = 0
        self._text = Text(self._folder, rank.uid)
        self._texts: tuple[int, str] | None = None  # the folder of Prometheus text, and the rank's local number

    def read(self, t_ns: int) -> list[Operation]:
        """What was written since the last reading; of Prometheus text the means that stand. Raises Unavailable."""
        if t_ns >= self._find_ns:
            self._find_ns, self._why = t_ns + FIND_NS, None
            try:
                self._find()
            except Unavailable as why:
                self._find_ns, self._why = t_ns + RETRY_NS, why
        if self._fd < 0 and self._why is not None:
            raise self._why
        if self._texts is not None:
            return self._text.read(*self._texts, time.time())
        if self._fd < 0:
            return []
        try:
            size = os.fstat(self._fd).st_size
            if size < self._offset:  # begun again
                self._begin(0)
            if size - self._offset > READ_BYTES:
                self._begin(size - READ_BYTES)
            data = os.pread(self._fd, READ_BYTES, self._offset)
        except OSError as error:
            self.close()
            raise Unavailable(f"its file: {(error.strerror or str(error)).lower()}") from None
        self._offset += len(data)
        return list(self._lines.read(self._split(data)))

    def close(self) -> None:
        """Close the file."""
        if self._texts is not None:
            os.close(self._texts[0])
            self._texts = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin(self, offset: int) -> None:
        self._offset, self._rest, self._skips = offset, b"", offset > 0
        self._lines.forget()

    def _split(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._skips:
            lines, self._skips = lines[1:], False
        if len(self._rest) > LINE_BYTES:
            self._rest, self._skips = b"", True
        return [line for line in lines if 1 < len(line) <= LINE_BYTES]

    def _find(self) -> None:
        """Open the newest file of the rank, unless it is open."""
        environ = read_once(self._folder + "environ", _ENVIRON_BYTES)
        if environ is None:
            raise Unavailable("its environment is not readable: another user's process", "run gputop as root, or as the job's user")
        variables = self.rank.variables | parse.environ(environ, _WANTED)
        if variables.get(_OTLP, "0") not in OFF:
            raise Unavailable("its Inspector writes to an OTLP endpoint, which gputop does not read", f"{_OTLP}=0")
        job = next((variables[name] for name in _JOBS if name in variables), "unknown-jobid")
        try:
            folder = self._open_folder(variables.get(FOLDER) or f"nccl-inspector-{job}")
            try:
                if variables.get(_TEXT, "0") not in OFF:
                    self.close()
                    self._texts = os.dup(folder), next((variables[name] for name in _LOCAL_RANKS if name in variables), "")
                else:
                    self._open_newest(folder, variables)
            finally:
                os.close(folder)
        except OSError as error:
            raise Unavailable(f"its Inspector's folder: {(error.strerror or str(error)).lower()}", f"{FOLDER}: a folder") from None

    def _open_folder(self, path: str) -> int:
        """The folder, as the rank sees it: from its own root or working directory, link by link refused."""
        if len(path) > _PATH_BYTES or "\0" in path:
            raise Unavailable(f"{FOLDER} is no path", FOLDER)
        folder = os.open(self._folder + ("root" if path.startswith("/") else "cwd"), _PATH_FLAGS)
        for part in path.split("/"):
            if part in ("", "."):
                continue
            try:
                if part == "..":
                    raise Unavailable(f"{FOLDER} has .. in it, which is not followed", f"{FOLDER}: the whole path")
                if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise Unavailable(f"a link in {FOLDER} is not followed", f"{FOLDER}: the path without links")
                below = os.open(part, _PATH_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
            finally:
                os.close(folder)
            folder = below
        try:
            return os.open(".", _LIST_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)

    def _open_newest(self, folder: int, variables: dict[str, str]) -> None:
        hosts = {os.uname().nodename, variables.get("HOSTNAME", "")}
        newest = (False, -1, "")
        with os.scandir(folder) as entries:
            for entry in islice(entries, MOST_FILES):
                match = _FILE.fullmatch(entry.name)
                if match is not None and int(match[2]) == self.rank.ns_pid:
                    newest = max(newest, (match[1] in hosts, entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
        if not newest[2]:
            late = variables.get(_INTERVAL, "-1").startswith("-")
            self.close()
            raise Unavailable(
                "its Inspector writes only as the job ends" if late else "its Inspector has written no JSON lines yet",
                f"export {_INTERVAL}=1000000" if late else "",
            )
        fd = os.open(newest[2], _FILE_FLAGS, dir_fd=folder)
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == self._file and self._fd >= 0:
            os.close(fd)
            return
        if not stat.S_ISREG(found.st_mode) or found.st_uid != self.rank.uid:
            os.close(fd)
            self.close()
            raise Unavailable("its Inspector's file is no regular file of its own user")
        self.close()
        self._fd, self._file = fd, (found.st_dev, found.st_ino)
        self._begin(0)
