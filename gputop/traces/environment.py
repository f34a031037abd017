"""The environment in which a torch job can be asked for a trace, and who was started in it.

Kineto reads its variables when torch is imported. They name a folder that belongs to the job's user alone (mode 0700): the job puts a
socket there, asks a daemon in the same folder once a second whether somebody wants a trace, and writes the trace there. Where no daemon
listens, which is so nearly always, the job's question fails at once. The abstract socket that Kineto uses without a folder is never used:
it delays the end of each job by up to 10 s, and any local user may bind it and have the job write files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from socket import socket
from typing import NamedTuple

from gputop.sources import parse
from gputop.sources.files import open_files, read_list, read_once
from gputop.sources.marks import make_directory
from gputop.stacks.permission import why_not
from gputop.system.errors import Unavailable, UserError, start_thread
from gputop.system.privilege import take_file_rights
from gputop.system.text import clean

FOLDER = "KINETO_IPC_SOCKET_DIR"
SWITCH = "KINETO_USE_DAEMON"  # any value, "0" as well
MOST_FOLDER_CHARS = 59  # of its path: Kineto checks only the name of the socket against sun_path's 108 bytes
CLIENT = "dynoconfigclient"  # a job's socket in the folder; a UUID follows
NAME = "dynolog"  # the daemon's socket in the folder
PREFIX = "gputop-trace-"  # of a trace, in the folder and where the user gets it
_CONFIG = "kineto.conf"
_ASKS_EACH_S = 1  # ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS: Kineto's default is 5
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DUMP_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")  # the second: before torch 2.9
_BUFFER_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # likewise
_BUFFER = "2000"  # collectives that each rank keeps, as torch does by itself since 2.9: 1 to 2 MB of a dump
FLIGHT = "gputop-flight-"  # of the recorder's pipes and dumps in the folder
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "6"  # of it: 5 still prints lines about USDT
ENVIRON_BYTES = 1 << 18
_UNIX_BYTES = 1 << 22  # of /proc/net/unix
_STAT_BYTES = 4096
MOST_FILES = 4096  # of a process that are looked through for its socket
_CLONE_FS = 0x200  # linux/sched.h: with unshare(2) a thread gets a root folder of its own
_VARIABLES = frozenset((SWITCH.encode(), FOLDER.encode()))
HOW = "start it by `gputop run -- COMMAND`, or after `eval \"$(gputop env)\"`"


def make_folder(path: str | None = None) -> str:
    """Make the folder of a job, mode 0700, with Kineto's configuration; returns its path. A folder that is there already is taken if it is
    the user's alone. UserError where none can be made.
    """
    try:
        path = os.path.abspath(path) if path else _unused()
    except OSError as error:
        raise UserError(f"no folder for sockets can be made: {error.strerror}: name one, by --folder") from None
    if len(path) > MOST_FOLDER_CHARS:
        raise UserError(f"{clean(path)}: a folder for sockets has at most {MOST_FOLDER_CHARS} characters: give a shorter one")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        folder = _own_folder(path, os.geteuid())
    except OSError as error:
        raise UserError(f"cannot make {clean(path)}: {error.strerror}: name another folder") from None
    except Unavailable as why:
        raise UserError(f"{clean(path)}: {why.reason}; {why.remedy}") from None
    try:
        text = f"ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS={_ASKS_EACH_S}\n".encode()
        file = os.open(_CONFIG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            os.write(file, text)
        finally:
            os.close(file)
    except OSError as error:
        raise UserError(f"cannot write {clean(path)}/{_CONFIG}: {error.strerror}") from None
    finally:
        os.close(folder)
    return path


def _unused() -> str:
    """A path for a new folder, in the directory of the user's markers or in /tmp itself: where other users may write, they could put a
    folder of theirs in its place, and have the job write files. Raises OSError."""
    descriptor, own, _refused = make_directory(os.geteuid())
    os.close(descriptor)
    path = os.path.join(own, os.urandom(4).hex())
    return path if len(path) <= MOST_FOLDER_CHARS else f"/tmp/gputop-{os.geteuid()}-{os.urandom(4).hex()}"


def variables(folder: str) -> dict[str, str]:
    """The environment for a job whose folder this is. The names before torch 2.9 are left out: later versions print a line for each."""
    flight = os.path.join(folder, FLIGHT)
    return {
        SWITCH: "1", FOLDER: folder, "KINETO_CONFIG": os.path.join(folder, _CONFIG), "KINETO_ONDEMAND_TRACE_DIR": folder,
        _LOG_LEVEL: _SILENT, PIPE: flight, DUMP_NAMES[0]: flight, _BUFFER_NAMES[0]: _BUFFER,
    }  # fmt: skip


def added(environ: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """(what a job's environment lacks, the folder that was made for it). Nothing where the user has set Kineto up already; a configuration
    of the user's own stays. With another log level Kineto would print two lines a second."""
    if SWITCH in environ or FOLDER in environ:
        return {}, None
    try:
        folder = make_folder()
    except UserError:
        return {}, None  # the job is not to fail for a trace that nobody asked for yet
    own = {*environ, *(name for names in (DUMP_NAMES, _BUFFER_NAMES) for name in names if not environ.keys().isdisjoint(names))}
    return {name: value for name, value in variables(folder).items() if name not in own or name == _LOG_LEVEL}, folder


def remove(folder: str) -> None:
    """Remove a folder that `make_folder` made, with what jobs left there: sockets, the configuration, traces that were not taken. It stays
    with dumps of a flight recorder in it, which torch leaves where a collective timed out."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith((CLIENT, PREFIX)) or name in (_CONFIG, NAME) or (name.startswith(FLIGHT) and name.endswith(".pipe")):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


class OnSharedSocket(Unavailable):
    """A process that uses Kineto's abstract socket, on which a dynolog may answer. ``uid``: whose process it is."""

    def __init__(self, pid: int, uid: int) -> None:
        super().__init__(f"process {pid} uses Kineto's shared socket, which any local user may command", f"set {FOLDER}: {HOW}")
        self.uid = uid


class Job(NamedTuple):
    """A process that may be asked. ``folder``: as the process names it. ``uid``: whose process it is."""

    pid: int
    folder: str
    uid: int


def job_of(pid: int, root: str = "/") -> Job:
    """The process, by its environment (/proc/PID/environ). Raises Unavailable with the reason why it cannot be asked."""
    proc = os.path.join(root, "proc", str(pid))
    try:
        uid = os.stat(proc).st_uid
    except OSError:
        raise Unavailable(f"process {pid} has ended") from None
    try:
        with open(os.path.join(proc, "environ"), "rb") as file:
            found = parse.environ(file.read(ENVIRON_BYTES), _VARIABLES)
    except OSError:
        raise Unavailable(why_not(pid, root)) from None
    folder = found.get(FOLDER, "")
    if SWITCH not in found:
        raise Unavailable(f"process {pid} was started without Kineto's variables", HOW)
    if folder.startswith("/") and len(folder) > MOST_FOLDER_CHARS:
        raise Unavailable(f"the folder of process {pid} has too long a path for sockets", HOW)
    if not folder.startswith("/"):
        raise OnSharedSocket(pid, uid)
    return Job(pid, folder, uid)


@contextmanager
def opened(job: Job, root: str = "/") -> Iterator[int]:
    """A descriptor of the job's folder, in the job's mount namespace. Raises Unavailable where it is missing or not the user's alone."""
    own = os.path.join(root, "proc", str(job.pid), "root")
    try:
        folder = _own_folder(own + job.folder, job.uid)
    except OSError as error:
        raise Unavailable(f"the folder of process {job.pid}, {clean(job.folder)}: {error.strerror}", HOW) from None
    try:
        yield folder
    finally:
        os.close(folder)


def _own_folder(path: str, uid: int) -> int:
    """A descriptor of the folder. Raises Unavailable unless it is this user's alone, OSError where it cannot be opened."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    seen = os.fstat(folder)
    if seen.st_uid != uid or stat.S_IMODE(seen.st_mode) & 0o077:
        os.close(folder)
        raise Unavailable("the folder belongs to another user, or is open to others", "chmod 700 it, or name another one")
    return folder


def bind_within(job: Job, listener: socket, path: str) -> None:
    """Bind a socket to a path of the job's mount namespace, by exactly this name, as the job's user: its folder may be exchanged for any
    other meanwhile, and root's rights would put the socket there. Raises OSError."""
    own, failed = f"/proc/{job.pid}", list[OSError]()
    is_elsewhere = not _has_our_files(own)
    if not is_elsewhere and job.uid == os.geteuid():
        listener.bind(path)
        return

    def bind() -> None:
        try:
            if is_elsewhere:
                _take_root(f"{own}/root")  # the name of a socket is the path that was bound
            if job.uid != os.geteuid() and not take_file_rights(job.uid, os.stat(own).st_gid, ()):
                raise PermissionError(errno.EPERM, "the rights of its user cannot be taken")
            listener.bind(path)
        except OSError as error:
            failed.append(error)

    thread = start_thread(bind, "gputop-bind")  # root folder and rights to files are a thread's own, and end with it
    if thread is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    thread.join()
    if failed:
        raise failed[0]


def shares_files(pid: int) -> bool:
    """True if a path means the same to the process and to this one. Raises OSError."""
    return _has_our_files(f"/proc/{pid}")


def _has_our_files(own: str) -> bool:
    """True if a path means the same to the process under ``own`` and to this one. Raises OSError."""
    spaces = (os.stat(f"{process}/ns/mnt").st_ino for process in (own, "/proc/self"))
    return len(set(spaces)) == 1 and os.path.samestat(os.stat(f"{own}/root"), os.stat("/"))


def _take_root(path: str) -> None:
    """Make a folder this thread's root. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_FS):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    os.chroot(path)


def waiting(root: str = "/") -> list[int]:
    """Pids of the processes that hold a socket on which Kineto waits for an answer (/proc/net/unix, /proc/PID/fd); forked children hold it,
    too, and are left out."""
    wanted = set()
    for line in (read_list(os.path.join(root, "proc/net/unix"), _UNIX_BYTES) or b"").splitlines():
        words = line.split()
        if len(words) >= 8 and os.path.basename(words[7]).startswith(CLIENT.encode()):
            wanted.add(f"socket:[{words[6].decode(errors='replace')}]")
    return eldest_holders(wanted.__contains__, root) if wanted else []


def eldest_holders(is_wanted: Callable[[str], bool], root: str = "/") -> list[int]:
    """Pids of the processes that opened the files whose links are wanted: of all that hold one the eldest, for forks inherit it."""
    holders: dict[str, tuple[int, int]] = {}  # link -> (start, pid)
    for name in os.listdir(os.path.join(root, "proc")):
        folder = os.path.join(root, "proc", name, "")
        for link in filter(is_wanted, _links(folder)) if name.isdigit() else ():
            with suppress(ValueError, IndexError):  # it has ended
                started = parse.stat(read_once(folder + "stat", _STAT_BYTES) or b"").start_ticks
                holders[link] = min(holders.get(link, (sys.maxsize, 0)), (started, int(name)))
    return sorted({pid for _, pid in holders.values()})


def _links(folder: str) -> set[str]:
    with suppress(OSError):
        return {link for _, link in open_files(folder, MOST_FILES)}
    return set()


def state_of(pid: int) -> str:
    """The state letter of a process; empty once it has ended."""
    with suppress(ValueError):
        return parse.state(read_once(f"/proc/{pid}/stat", _STAT_BYTES) or b"")
    return ""
