"""py-spy as a child process: where it is, one dump of one process, and what its errors mean."""

from __future__ import annotations

import os
import resource
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from typing import Any

import msgspec

from gputop.priority import ordinary
from gputop.stacks.frames import MAX_FRAMES
from gputop.stacks.frames import Line
from gputop.stacks.python_thread import MAX_THREADS
from gputop.stacks.python_thread import PythonThread
from gputop.stacks.python_thread import Unreadable

if TYPE_CHECKING:
    import subprocess

MOST_MEMORY, MOST_OUTPUT = 1 << 30, 32 << 20  # bytes that it may take, and say: for a trainer with torch 64 MB do, and 100 kB
BEYOND_PY_SPY = frozenset({"not-python", "unsupported", "missing", "hidden"})
"""Kinds of failure after which `gputop.stacks.interpreter` may still read it: free-threaded builds, a chroot, no py-spy here."""


def binary() -> str | None:
    """py-spy beside the running interpreter (its own environment), else on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable or ""), "py-spy")
    if os.access(beside, os.X_OK):
        return beside
    import shutil  # it loads compressors, for archives

    return shutil.which("py-spy")


def dump(pid: int, deadline: float, *, pause: bool = False, native: bool = False) -> list[PythonThread]:
    """All Python threads of ``pid``; ``deadline`` on time.monotonic(). Raises `Unreadable`.

    Without ``pause`` the process runs on while it is read (0.3 ms of noise, measured); with it ptrace stops it for 0.6 to 1.5 ms,
    with ``native`` for about 20 ms.
    """
    arguments = ["dump", "--json", "--full-filenames", "--pid", str(pid)]
    arguments += ["--native"] if native else []
    arguments += [] if pause or native else ["--nonblocking"]
    status, output, errors = run(arguments, deadline, hurry=not native)
    if status != 0:
        raise explain(errors)
    try:
        return [_thread(entry) for entry in msgspec.json.decode(output)[:MAX_THREADS]]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable("torn", f"py-spy's answer cannot be read: {error}") from error


def run(arguments: list[str], deadline: float, hurry: bool = False) -> tuple[int, bytes, str]:
    """Run py-spy to its end: exit status, output, errors. Raises `Unreadable` where it is missing or not done by ``deadline``.

    ``hurry`` asks for a place before busy neighbours: where CPUs are overcommitted, which is what stacks are to explain, they else
    come seconds late. For work of some 15 ms only.
    """
    import subprocess

    program = binary()
    if program is None:
        raise Unreadable("missing", "py-spy is not installed: pip install py-spy")
    with open(os.memfd_create("gputop-py-spy"), "w+b", buffering=0) as output:
        with ordinary():
            child = subprocess.Popen(
                [program, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, env=_ENVIRONMENT
            )
        _bound(child.pid)
        if hurry:
            _put_first(child.pid)
        try:
            _, errors = child.communicate(timeout=max(0.01, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            _reap(child)
            raise Unreadable("timeout", "timed out: py-spy did not answer") from None
        return child.returncode, os.pread(output.fileno(), MOST_OUTPUT, 0), errors.decode("utf-8", "replace")


def _bound(pid: int) -> None:
    """Whoever is read decides how much there is to read."""
    for limit, most in ((resource.RLIMIT_DATA, MOST_MEMORY), (resource.RLIMIT_FSIZE, MOST_OUTPUT), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError):  # it has ended already
            resource.prlimit(pid, limit, (most, most))


def _put_first(pid: int) -> None:
    try:
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return  # without CAP_SYS_NICE it takes its turn


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Collect a killed child, but wait for none that the kernel does not let go (a target whose memory is locked in D state)."""
    import subprocess

    try:
        child.communicate(timeout=0.2)
    except subprocess.TimeoutExpired:
        child.poll()


_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "RUST_BACKTRACE": "0"}


def explain(errors: str) -> Unreadable:
    """The one line and the kind behind what py-spy printed when it failed."""
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
