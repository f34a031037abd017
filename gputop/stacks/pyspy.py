"""py-spy as a child process: one dump of one process, and the meaning of its errors.

py-spy opens the files that a process maps by their names below /proc/PID/root, and the owner of the process decides what stands there. So
root's gputop runs py-spy as the owner, which could open the files anyway.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from gputop.sources import parse
from gputop.stacks.frames import MAX_FRAMES, MAX_THREADS, Line, PythonThread, Unreadable
from gputop.system.decoding import BROKEN
from gputop.system.priority import ordinary_priority
from gputop.system.privilege import CAP_SYS_PTRACE, start_as

if TYPE_CHECKING:
    import subprocess

MOST_MEMORY, MOST_OUTPUT = 1 << 30, 32 << 20  # bytes; for a trainer with torch py-spy needs 64 MB and writes 100 kB
# Kinds of `Unreadable` after which `gputop.stacks.interpreter` may succeed: free-threaded builds, a chroot, no py-spy here.
BEYOND_PY_SPY = frozenset({"not-python", "unsupported", "missing", "hidden"})
# sh sets the limits, since a process of another user cannot be limited from outside; the process that is read decides how much there is.
_BOUNDED = 'ulimit -d "$1" && ulimit -f "$2" && ulimit -c 0 && shift 2 && exec "$@"'
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "RUST_BACKTRACE": "0"}


def binary() -> str | None:
    """Path of py-spy: in the running interpreter's folder, else on PATH; None if it is not installed."""
    beside = os.path.join(os.path.dirname(sys.executable or ""), "py-spy")
    if os.access(beside, os.X_OK):
        return beside
    import shutil  # loads compressors

    return shutil.which("py-spy")


def dump(pid: int, deadline: float, *, pause: bool = False, native: bool = False) -> list[PythonThread]:
    """All Python threads of ``pid``; ``deadline`` on time.monotonic(). Raises `Unreadable`.

    Without ``pause`` the process runs on (0.3 ms of noise, measured). With it ptrace stops the process for 0.6 to 1.5 ms, with ``native``
    for about 20 ms.
    """
    arguments = ["dump", "--json", "--full-filenames"]
    arguments += ["--native"] if native else []
    arguments += [] if pause or native else ["--nonblocking"]
    output = run(pid, arguments, deadline, hurry=not native)
    try:
        return [_thread(entry) for entry in msgspec.json.decode(output)[:MAX_THREADS]]
    except (*BROKEN, KeyError, TypeError, AttributeError) as error:
        raise Unreadable("torn", f"py-spy's answer cannot be read: {error}") from error


def run(pid: int, arguments: list[str], deadline: float, hurry: bool = False) -> bytes:
    """Run py-spy on ``pid`` and return its output. Raises `Unreadable` if it is missing, fails or misses ``deadline``.

    ``hurry`` gives py-spy real-time priority, for work of some 15 ms: on overcommitted CPUs, which stacks are to explain, they would
    otherwise come seconds late.
    """
    program = binary()
    if program is None:
        raise Unreadable("missing", "py-spy is not installed: pip install py-spy")
    with _owner(pid) as owner, open(os.memfd_create("gputop-py-spy"), "w+b", buffering=0) as output:
        fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)  # keeps messages after a result that py-spy writes to /dev/stdout
        child = _start(program, [*arguments, "--pid", str(pid)], owner, output)
        if hurry:
            _put_first(child.pid)
        errors = _await(child, deadline)
        if child.returncode == 0:
            return os.pread(output.fileno(), MOST_OUTPUT, 0)
    error = explain(errors)
    if owner is not None and error.kind == "permission":
        raise Unreadable("hidden", "its owner may not read its program's files")
    raise error


def _start(program: str, arguments: list[str], owner: tuple[int, int] | None, output: BinaryIO) -> subprocess.Popen[bytes]:
    import subprocess

    # By the folder's descriptor: the owner may not be allowed to walk the path.
    folder, name = os.path.split(os.path.realpath(program))
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    command = ["sh", "-c", _BOUNDED, "sh", *_bounds(), f"/proc/self/fd/{handle}/{name}", *arguments]

    def begin(**user: Any) -> subprocess.Popen[bytes]:
        with ordinary_priority():
            return subprocess.Popen(
                command, executable="/bin/sh", stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, env=_ENVIRONMENT,
                cwd="/", pass_fds=(handle,), **user,
            )  # fmt: skip

    try:
        return begin() if owner is None else start_as(owner, 1 << CAP_SYS_PTRACE, begin)
    except OSError as error:
        raise Unreadable("missing", f"py-spy could not be started: {error.strerror}") from error
    finally:
        os.close(handle)


def _await(child: subprocess.Popen[bytes], deadline: float) -> str:
    """Wait for the child; returns its standard error. Raises `Unreadable` at the deadline."""
    import subprocess

    try:
        return child.communicate(timeout=max(0.01, deadline - time.monotonic()))[1].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        child.kill()
        _reap(child)
        raise Unreadable("timeout", "timed out: py-spy did not answer") from None


@contextmanager
def _owner(pid: int) -> Iterator[tuple[int, int] | None]:
    """Yield (uid, gid) of the process's owner if this process is root and the owner is not; None otherwise.

    Raises `Unreadable` if the process or its owner is another one after the block.
    """
    if os.geteuid() != 0:
        yield None
        return
    gone = Unreadable("gone", "ended while it was read")
    try:
        process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # never refers to a later process with this pid
    except OSError:
        raise gone from None
    try:
        found = _ids(process)
        if found is None:
            raise gone
        yield found if found[0] else None
        if _ids(process) != found:
            raise gone
    finally:
        os.close(process)


def _ids(process: int) -> tuple[int, int] | None:
    """(uid, gid) from the status of a /proc/PID directory, the first ids that are not root's; None if the process has ended."""
    try:
        with open(os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), "rb") as file:
            status = file.read()
    except OSError:
        return None
    users, groups = (list(map(int, parse.status_line(status, label).split())) for label in (b"Uid", b"Gid"))
    return next(((uid, gid) for uid, gid in zip(users, groups, strict=True) if uid), (0, groups[0]))


def _bounds() -> list[str]:
    """The arguments of `_BOUNDED`: kB of data, blocks of 512 bytes of output."""
    wanted = (resource.RLIMIT_DATA, MOST_MEMORY, 1024), (resource.RLIMIT_FSIZE, MOST_OUTPUT, 512)
    most = ((resource.getrlimit(limit)[1], bytes_, unit) for limit, bytes_, unit in wanted)
    return [str((bytes_ if hard == resource.RLIM_INFINITY else min(hard, bytes_)) // unit) for hard, bytes_, unit in most]


def _put_first(pid: int) -> None:
    try:
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return  # without CAP_SYS_NICE py-spy has ordinary priority


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Reap a killed child, unless the kernel keeps it (its target's memory is locked in state D)."""
    import subprocess

    try:
        child.communicate(timeout=0.2)
    except subprocess.TimeoutExpired:
        child.poll()


def explain(errors: str) -> Unreadable:
    """The reason and kind of a failure, from py-spy's standard error."""
    said = " ".join(line.strip() for line in errors.partition("Stack backtrace:")[0].splitlines() if line.strip())
    said = said.removeprefix("Error: ")[:300]
    lower = said.lower()
    if "permission denied" in lower or "operation not permitted" in lower or "os error 1)" in lower or "os error 13)" in lower:
        return Unreadable("permission", "not permitted")
    if "os error 3)" in lower or "no such process" in lower:
        return Unreadable("gone", "ended while it was read")
    if "get process executable name" in lower or "open process" in lower:
        return Unreadable("gone", "ended while it was read, or has no program of its own")
    if "os error 2)" in lower:
        return Unreadable("hidden", "its program's files cannot be found by their names")
    if "unsupported version of python" in lower:
        return Unreadable("unsupported", f"{said}: `pip install -U py-spy` may read it")
    if "find python version" in lower or "find a python interpreter" in lower:
        return Unreadable("not-python", "not Python")
    return Unreadable("torn", said or "py-spy failed without a word")


def _thread(entry: dict[str, Any]) -> PythonThread:
    frames = [Line(str(f["name"]), str(f["filename"]), int(f["line"] or 0)) for f in entry["frames"][:MAX_FRAMES]]
    return PythonThread(
        name=str(entry.get("thread_name") or "")[:200],
        tid=entry.get("os_thread_id"),
        pthread=int(entry.get("thread_id") or 0),
        active=bool(entry.get("active")),
        gil=bool(entry.get("owns_gil")),
        frames=frames,
    )
