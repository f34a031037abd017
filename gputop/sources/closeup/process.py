"""Reads the process that Enter shows, on demand from /proc/PID of this machine, once, bounded in time and size.

psutil reads the priorities, the CPU affinity and the start time. The rest is read by hand: psutil's `open_files` calls stat on each file,
which hangs on a dead NFS server; its `net_connections` reads the sockets of gputop's own network namespace, so a container's process
seems to have none; both read without a bound. Limits come from /proc/PID/limits, which any user may read; prlimit(2) refuses other users.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct

from gputop.sources import parse
from gputop.sources.closeup.surroundings import VALUE_CHARS, Container, container_of, masked, slurm_of
from gputop.sources.files import Mounted, mounted

PART_S = 1.0  # s that one part may take before it is cut; a choice
MOST_FILES = 1000  # open files described one by one, the others counted; a choice
MOST_SOCKETS = 1000  # connections described one by one; a choice
MOST_THREADS = 500  # threads described one by one; a choice
MOST_VARIABLES = 1000  # environment variables shown; a choice
ENVIRON_BYTES = 1 << 18  # bytes read of /proc/PID/environ; the kernel allows 2 MB and more; a choice
NET_BYTES = 1 << 25  # bytes read of each /proc/PID/net table: 200,000 sockets
CHECK_EVERY = 256  # entries between two looks at the clock

_TCP_STATES = (
    "", "established", "syn-sent", "syn-recv", "fin-wait-1", "fin-wait-2", "time-wait", "close", "close-wait", "last-ack", "listen",
    "closing", "new-syn-recv",
)  # fmt: skip  # include/net/tcp_states.h
_UNIX_TYPES = {1: "stream", 2: "datagram", 5: "seqpacket"}
_UNIX_STATES = {1: "unconnected", 2: "connecting", 3: "connected", 4: "disconnecting"}
_UNIX_LISTENS = 1 << 16  # __SO_ACCEPTCON in the flags of /proc/net/unix
_IO_CLASSES = ("none", "realtime", "best effort", "idle")  # IOPRIO_CLASS_*
_NOT_OFFERED = "not offered by this kernel"
_NAMESPACES = ("pid", "mnt", "net", "user", "ipc", "uts", "cgroup")


class Limit(Struct, frozen=True):
    """One resource limit (/proc/PID/limits). None is unlimited."""

    name: str
    soft: int | None
    hard: int | None
    unit: str  # ``bytes``, ``files``, ``processes``, ``us``, ``seconds``, ``locks``, ``signals`` or empty


class Priority(Struct, frozen=True):
    """Nice value, I/O class and CPU affinity (psutil: getpriority, ioprio_get, sched_getaffinity of the main thread)."""

    nice: int
    io_class: str
    io_level: int  # 0 (first) to 7, of the classes realtime and best effort
    cpus: list[int]


class Program(Struct, frozen=True):
    """The program, its folders and its start (/proc/PID/exe, cwd; psutil: start time)."""

    started_unix_s: float
    exe: str
    cwd: str
    cwd_mount: str  # the file system that the working directory lies on: ``ext4 /dev/sda1 at /data``
    unread: dict[str, str] = {}  # field -> why it could not be read


class Place(Struct, frozen=True):
    """Container, Slurm job, and the namespaces that are not gputop's own."""

    container: Container | None
    slurm: dict[str, str]
    """``job``, ``step``, ``task``, ``rank``, ``ranks``, ``nodes``, ``name``, ``partition``, as far as known; empty outside Slurm."""
    namespaces: list[str]
    unread: dict[str, str] = {}
    """``environment`` or ``namespaces`` -> why it could not be read; container and job are then known from the cgroup alone."""


class CloseupThread(Struct, frozen=True):
    """One thread (/proc/PID/task/TID/stat)."""

    tid: int
    name: str
    state: str
    cpu_s: float
    cpu: int  # the CPU it last ran on


class OpenFile(Struct, frozen=True):
    """One descriptor that is no socket."""

    fd: int
    kind: str  # ``file``, ``pipe``, ``device``, ``memory`` or ``other``
    target: str
    mode: str = ""  # ``r``, ``w`` or ``rw``, with ``append`` and ``direct``
    position: int | None = None  # bytes into the file
    mount: str = ""  # the file system that it lies on: ``nfs4 filer:/export at /data``


class OpenSocket(Struct, frozen=True):
    """One socket (/proc/PID/net/{tcp,tcp6,udp,udp6,unix})."""

    fd: int
    kind: str  # ``tcp``, ``tcp6``, ``udp``, ``udp6``, ``unix stream``, ``unix datagram``; ``other`` is netlink, raw, packet, vsock …
    local: str = ""
    remote: str = ""
    state: str = ""
    to_send: int | None = None  # bytes in the send queue that the other end has not confirmed
    to_read: int | None = None  # bytes received that the process has not read; of a listening socket: connections that wait


class Descriptors(Struct, frozen=True):
    """The open files and sockets."""

    files: list[OpenFile]
    sockets: dict[int, int]  # inode -> descriptor
    kinds: dict[str, int]  # kind -> how many, of all descriptors that were looked at


class ProcessDetails(Struct, frozen=True):
    """One process. A part is None until it is read; if it cannot be read, ``missing`` has the reason."""

    pid: int
    start_ticks: int
    unix_s: float  # when the reading began
    program: Program | None = None
    priority: Priority | None = None
    limits: list[Limit] | None = None
    descriptors: Descriptors | None = None
    connections: list[OpenSocket] | None = None
    environment: list[tuple[str, str]] | None = None  # names and values at its start; what looks secret is hidden
    place: Place | None = None
    threads: list[CloseupThread] | None = None
    missing: dict[str, str] = {}  # part -> why it could not be read
    cut: dict[str, str] = {}  # part -> how much was read, if not the whole
    rights: str = ""  # why the system refuses parts to gputop; empty where it refuses none
    gone: str = ""  # that the process has ended, in words; the parts were read before that
    is_whole: bool = False  # no part is still to be read


class Gone(Exception):
    """The process has ended, or its pid belongs to another one now."""


def read(pid: int, start_ticks: int, proc: str = "/proc") -> Iterator[ProcessDetails]:
    """Yields the details with one more part each time: where the kernel hangs on a part, the parts before it can be shown.

    ``start_ticks`` (/proc/PID/stat field 22) guards against a reused pid: nothing is read of another process.
    """
    reader = _PartReader(pid, start_ticks, proc)
    found = ProcessDetails(pid, start_ticks, time.time())
    for name, part in _PARTS.items():
        missing, cut, value = dict(found.missing), dict(found.cut), None
        reader.cut = ""
        reader.deadline = time.monotonic() + PART_S
        try:
            reader.check()
            value = part(reader)
            reader.check()
        except Gone as error:
            yield msgspec.structs.replace(found, gone=str(error), is_whole=True)
            return
        except OSError as error:
            missing[name] = reader.why(error)
        except (ValueError, LookupError, struct.error) as error:
            missing[name] = f"gputop cannot read what stands in /proc: {error}"
        if reader.cut:
            cut[name] = reader.cut
        whole = name == next(reversed(_PARTS))
        found = msgspec.structs.replace(found, **{name: value}, missing=missing, cut=cut, rights=reader.rights, is_whole=whole)
        yield found


class _PartReader:
    """Reads the parts of one process."""

    def __init__(self, pid: int, start_ticks: int, proc: str) -> None:
        self.pid, self.start_ticks = pid, start_ticks
        self.folder = f"{proc}/{pid}"
        self.own = f"{proc}/self"
        self.deadline = 0.0
        self._sockets: dict[int, int] | None = None
        self._cut_sockets = ""  # why `_sockets` are not all
        self.rights = ""  # why the system refused a part; empty while it has not
        self.cut = ""  # how much of the part was read; empty where all was

    def check(self) -> None:
        """Raises Gone unless the pid still belongs to this process."""
        try:
            stat = parse.stat(self._bytes("stat", 4096))
        except (FileNotFoundError, ProcessLookupError):
            raise Gone("the process has ended") from None
        if stat.start_ticks != self.start_ticks:
            raise Gone("the process has ended; its pid belongs to another one now")

    def why(self, error: OSError) -> str:
        """The reason in a few words. Where the system refused, `rights` then has the longer one."""
        if error.errno in (errno.ENOENT, errno.ESRCH):
            return self._why_none()
        if error.errno not in (errno.EACCES, errno.EPERM):
            return (error.strerror or str(error)).lower()
        try:
            uid = int(parse.status_line(self._bytes("status", 4096), b"Uid").split()[0])
        except (OSError, ValueError, IndexError):
            return "not readable"
        ours = os.geteuid()
        if ours not in (0, uid):
            sudo = ", also after sudo" if os.environ.get("SUDO_UID") else ""
            self.rights = f"the screen runs as {_user(ours)}{sudo}: what belongs to {_user(uid)} stays closed"
            return f"belongs to {_user(uid)}"
        self.rights = (
            "gputop is root, but has no CAP_SYS_PTRACE over this process, as in a container"
            if ours == 0
            else "the kernel keeps even its owner out: a setuid program, one with more capabilities, or another user namespace"
        )
        return "not readable"

    def _why_none(self) -> str:
        try:
            stat = parse.stat(self._bytes("stat", 4096))
        except OSError:
            return "the process has ended"
        if stat.kthread:
            return "a kernel thread has none"
        return "has ended; its parent has not collected it (zombie)" if stat.state == "Z" else _NOT_OFFERED

    def program(self) -> Program:
        unread: dict[str, str] = {}
        exe, cwd = self._link("exe", unread), self._link("cwd", unread)
        holds = (one for one in reversed(self._mounts) if cwd == one.point or cwd.startswith(one.point.rstrip("/") + "/"))
        mount = next(holds, None) if cwd else None
        with _as_os_errors():
            return Program(self._process.create_time(), exe, cwd, mount_words(mount) if mount else "", unread)

    def priority(self) -> Priority:
        with _as_os_errors():
            process = self._process
            nice, io, cpus = process.nice(), process.ionice(), process.cpu_affinity()
        return Priority(int(nice), _IO_CLASSES[int(io.ioclass)], int(io.value), sorted(cpus))

    def limits(self) -> list[Limit]:
        return limits_of(self._bytes("limits", 1 << 14).decode("ascii", "replace"))

    def descriptors(self) -> Descriptors:
        """The first `MOST_FILES` described; all are counted, as far as time allows."""
        files: list[OpenFile] = []
        sockets: dict[int, int] = {}
        kinds: Counter[str] = Counter()
        count, is_cut = 0, False
        with os.scandir(f"{self.folder}/fd") as entries:
            for count, entry in enumerate(entries, 1):
                if count % CHECK_EVERY == 0 and self._is_late():
                    is_cut = True
                    break
                fd = int(entry.name)
                try:
                    target = _text(os.readlink(os.fsencode(entry.path)))
                except FileNotFoundError:  # closed meanwhile
                    continue
                kind = kind_of(target)
                kinds[kind] += 1
                if kind == "socket":
                    sockets[int(target[8:-1])] = fd
                elif len(files) < MOST_FILES:
                    files.append(self._file(fd, kind, target))
        if not count and self._why_none() != _NOT_OFFERED:
            raise FileNotFoundError(errno.ENOENT, "")
        if kinds.total() - kinds["socket"] > len(files):
            self.cut = f"the first {len(files):,} of {kinds.total() - kinds['socket']:,}"
        if is_cut:
            self.cut = self._cut_sockets = f"of the first {count:,} descriptors: there was no time for more"
        self._sockets = sockets
        return Descriptors(sorted(files, key=lambda file: file.fd), sockets, dict(kinds))

    def _file(self, fd: int, kind: str, target: str) -> OpenFile:
        try:
            info = dict(line.split(b":", 1) for line in self._bytes(f"fdinfo/{fd}", 4096).splitlines() if b":" in line)
        except OSError:
            return OpenFile(fd, kind, target)
        position, flags = int(info.get(b"pos", b"0")), int(info.get(b"flags", b"0"), 8)
        mount = self._mounts_by_id.get(_text(info.get(b"mnt_id", b"").strip())) if kind in ("file", "device") else None
        return OpenFile(fd, kind, target, _mode(flags), position if kind == "file" else None, mount_words(mount) if mount else "")

    def connections(self) -> list[OpenSocket]:
        """The sockets among the descriptors, looked up by inode in the tables of the process's own network namespace."""
        sockets = dict(self._sockets if self._sockets is not None else self.descriptors().sockets)
        self.cut = self._cut_sockets
        found: list[OpenSocket] = []
        for table in ("tcp", "tcp6", "udp", "udp6", "unix"):
            if not sockets or len(found) >= MOST_SOCKETS:
                break
            described = unix_socket if table == "unix" else inet_socket
            for line in self._net_lines(table):
                connection = described(table, line, sockets)
                if connection is not None and len(found) < MOST_SOCKETS:
                    found.append(connection)
        if len(found) >= MOST_SOCKETS and sockets:
            self.cut = f"the first {len(found):,}; {len(sockets):,} more sockets"
        elif self.cut == self._cut_sockets:
            found += [OpenSocket(fd, "other") for fd in sockets.values()]
        return sorted(found, key=lambda one: (one.kind, one.state, one.fd))

    def _net_lines(self, table: str) -> Iterator[bytes]:
        """The lines of a table, without its title; the kernel walks all sockets of the namespace for it."""
        read = 0
        try:
            with open(f"{self.folder}/net/{table}", "rb") as file:
                for number, line in enumerate(file):
                    read += len(line)
                    if read > NET_BYTES or (number % CHECK_EVERY == 0 and self._is_late()):
                        self.cut = f"from the first {read >> 20} MB of /proc/{self.pid}/net/{table}: time ran out"
                        return
                    if number:
                        yield line
        except FileNotFoundError:  # a kernel without IPv6
            return

    def environment(self) -> list[tuple[str, str]]:
        """(name, value) of its variables. Raises OSError with the reason if they cannot be read."""
        variables = self._environ
        if not variables:
            raise OSError(0, "empty: the process was started without one, or wrote over it (setproctitle)")
        if len(variables) > MOST_VARIABLES:
            self.cut = f"the first {MOST_VARIABLES:,} of {len(variables):,}"
        if len(self._environ_bytes) >= ENVIRON_BYTES:
            self.cut = f"the first {ENVIRON_BYTES >> 10} KB"
        shown = sorted(variables.items())[:MOST_VARIABLES]
        return [(name[:VALUE_CHARS], masked(name, value)) for name, value in shown]

    def place(self) -> Place:
        unread: dict[str, str] = {}
        environment: dict[str, str] = {}
        try:
            environment = self._environ
        except OSError as error:
            unread["environment"] = self.why(error)
        try:
            links = {name: (self._namespace(self.folder, name), self._namespace(self.own, name)) for name in _NAMESPACES}
            foreign = [name for name, (its, ours) in links.items() if its and its != ours]
        except OSError as error:
            foreign, unread["namespaces"] = [], self.why(error)
        paths = list(parse.cgroups(self._bytes("cgroup", 1 << 14)).values())
        roots = [mount.root for mount in self._mounts]
        return Place(container_of(paths, roots, environment), slurm_of(paths, environment), foreign, unread)

    def threads(self) -> list[CloseupThread]:
        found: list[CloseupThread] = []
        count = 0
        with os.scandir(f"{self.folder}/task") as entries:
            for entry in entries:
                count += 1
                if len(found) >= MOST_THREADS or self._is_late():
                    continue
                try:
                    stat = parse.stat(self._bytes(f"task/{entry.name}/stat", 4096))
                except (FileNotFoundError, ProcessLookupError):
                    continue
                cpu_s = (stat.utime + stat.stime) / parse.CLOCK_TICK_HZ
                found.append(CloseupThread(int(entry.name), _text(stat.comm), stat.state, cpu_s, stat.processor))
        if count > len(found):
            self.cut = f"the first {len(found):,} of {count:,}"
        return found

    @cached_property
    def _process(self) -> Any:
        import psutil

        return psutil.Process(self.pid)

    @cached_property
    def _environ_bytes(self) -> bytes:
        return self._bytes("environ", ENVIRON_BYTES)

    @cached_property
    def _environ(self) -> dict[str, str]:
        entries = (entry.partition(b"=") for entry in self._environ_bytes.split(b"\0"))
        return {_text(name): _text(value) for name, equals, value in entries if name and equals}

    @cached_property
    def _mounts(self) -> list[Mounted]:
        """Mounts as the process sees them; empty if they cannot be read."""
        return mounted(f"{self.folder}/mountinfo")

    @cached_property
    def _mounts_by_id(self) -> dict[str, Mounted]:
        return {mount.id: mount for mount in self._mounts}

    def _bytes(self, name: str, size: int) -> bytes:
        """The first ``size`` bytes of a file. Raises OSError."""
        fd = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, size)
        finally:
            os.close(fd)

    def _link(self, name: str, unread: dict[str, str]) -> str:
        try:
            return _text(os.readlink(os.fsencode(f"{self.folder}/{name}")))
        except OSError as error:
            unread[name] = self.why(error)
            return ""

    def _namespace(self, folder: str, name: str) -> str:
        try:
            return os.readlink(f"{folder}/ns/{name}")
        except FileNotFoundError:  # this kernel has no such namespaces
            return ""

    def _is_late(self) -> bool:
        return time.monotonic() > self.deadline


_PARTS: dict[str, Callable[[_PartReader], object]] = {
    "program": _PartReader.program, "priority": _PartReader.priority, "limits": _PartReader.limits, "threads": _PartReader.threads,
    "descriptors": _PartReader.descriptors, "connections": _PartReader.connections, "environment": _PartReader.environment,
    "place": _PartReader.place,
}  # fmt: skip
"""Part -> its reader, in the order of reading. /proc/PID/environ comes last: a process that holds its memory's lock can block it."""


def mount_words(mount: Mounted) -> str:
    """``ext4 /dev/sda1 at /data``."""
    return f"{mount.kind} {mount.source} at {mount.point}"


def limits_of(text: str) -> list[Limit]:
    """The lines of /proc/PID/limits: name, soft, hard, unit in columns of 26, 21, 21 and 10 characters."""
    rows = [(line[:26].strip(), line[26:47].strip(), line[47:68].strip(), line[68:].strip()) for line in text.splitlines()[1:]]
    return [Limit(name, _limit(soft), _limit(hard), unit) for name, soft, hard, unit in rows if name and soft and hard]


def _limit(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def kind_of(target: str) -> str:
    """Kind of file that a link of /proc/PID/fd leads to, by its text alone: a stat of the file could hang."""
    if target.startswith("socket:["):
        return "socket"
    if target.startswith("pipe:["):
        return "pipe"
    if target.startswith(("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")):
        return "memory"
    return "device" if target.startswith("/dev/") else "file" if target.startswith("/") else "other"


def _mode(flags: int) -> str:
    words = [("r", "w", "rw", "")[flags & os.O_ACCMODE]]
    words += [word for word, bit in (("append", os.O_APPEND), ("direct", os.O_DIRECT)) if flags & bit]
    return " ".join(words)


def inet_socket(table: str, line: bytes, sockets: dict[int, int]) -> OpenSocket | None:
    """A line of /proc/PID/net/tcp or udp as a connection, where ``sockets`` has its inode, which is taken out."""
    fields = line.split(None, 10)
    if len(fields) < 10 or (fd := sockets.pop(int(fields[9]), None)) is None:
        return None
    state = int(fields[3], 16)
    name = _TCP_STATES[state] if table.startswith("tcp") and state < len(_TCP_STATES) else "connected" if state == 1 else ""
    to_send, _, to_read = fields[4].partition(b":")
    local, remote = address(fields[1].decode()), address(fields[2].decode())
    return OpenSocket(fd, table, local, remote if not remote.endswith(":0") else "", name, int(to_send, 16), int(to_read, 16))


def address(text: str) -> str:
    """``127.0.0.1:22`` or ``[::1]:22`` of ``0100007F:0016``: words of four bytes in this machine's byte order."""
    host, _, port = text.partition(":")
    words = struct.pack(f"={len(host) // 8}I", *(int(host[at : at + 8], 16) for at in range(0, len(host), 8)))
    if len(words) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, words)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, words)}]:{int(port, 16)}"


def unix_socket(_table: str, line: bytes, sockets: dict[int, int]) -> OpenSocket | None:
    """A line of /proc/PID/net/unix as a connection, where ``sockets`` has its inode, which is taken out."""
    fields = line.rstrip(b"\n").split(None, 7)
    if len(fields) < 7 or (fd := sockets.pop(int(fields[6]), None)) is None:
        return None
    listens = int(fields[3], 16) & _UNIX_LISTENS
    state = "listen" if listens else _UNIX_STATES.get(int(fields[5], 16), "")
    kind = f"unix {_UNIX_TYPES.get(int(fields[4], 16), '')}".rstrip()
    return OpenSocket(fd, kind, _text(fields[7]) if len(fields) > 7 else "", "", state)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Within the block psutil's errors are raised as the system's errors that they stand for."""
    import psutil

    try:
        yield
    except psutil.NoSuchProcess:
        raise ProcessLookupError(errno.ESRCH, "gone") from None
    except psutil.AccessDenied:
        raise PermissionError(errno.EACCES, "refused") from None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return f"user {uid}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
