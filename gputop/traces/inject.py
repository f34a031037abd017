"""A trace of a job that was started without Kineto's variables, by a script that the job's own Python runs (`sys.remote_exec`, PEP 768).

Job and gputop run the same Python, 3.14 or later, and gputop may trace the job (the same user, or root). The script runs in the job's main
thread between two instructions of Python. It starts torch.profiler there, and a thread that has the main thread stop it, even if gputop has
ended meanwhile; the file is written in a thread, too. Nothing is loaded but what torch has already, and nothing stays.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from contextlib import suppress

from gputop.stacks.permission import why_not
from gputop.system.errors import Unavailable
from gputop.system.output import write_all
from gputop.traces.environment import Job, shares_files

LEAST_PYTHON = (3, 14)
FAILED = "failed"  # file in the folder with the reason why there is no trace
_SCRIPT_NAME = "trace.py"
_MOST_REASON_BYTES = 1000
SCRIPT = '''
def _gputop(seconds, with_stack, path, failed):
    import ctypes, os, sys, threading, time
    def fail(why):
        with open(failed, "w") as file:
            file.write(str(why)[:200])
    torch = sys.modules.get("torch")
    if torch is None or "torch.profiler" not in sys.modules:
        fail("it has not imported torch")
        return
    from torch.profiler import ProfilerActivity, profile
    def write():
        try:
            one.export_chrome_trace(path + ".part")
            os.rename(path + ".part", path)
        except Exception as error:
            fail(error)
    def stop(_):
        try:
            one.stop()
        except Exception as error:
            fail(error)
        else:
            threading.Thread(target=write, daemon=True).start()
        return 0
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(stop)
    def wait():
        time.sleep(seconds)
        while ctypes.pythonapi.Py_AddPendingCall(call, None):
            time.sleep(0.01)
        threading.Event().wait(60.0)  # the call is kept until it has been made
    try:
        kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_initialized() else [])
        one = profile(activities=kinds, with_stack=with_stack)
        one.start()
        threading.Thread(target=wait, daemon=True).start()
    except Exception as error:
        fail(error)
'''
"""What the job runs. A pending call is Python's own way to have the main thread do something; only the thread that started torch's profiler
may stop it."""


def check_python() -> None:
    """Raise Unavailable if gputop's own Python cannot inject."""
    if sys.version_info < LEAST_PYTHON:
        own = ".".join(map(str, sys.version_info[:2]))
        raise Unavailable(f"gputop runs on Python {own}, which cannot inject", "run it on the job's own Python, 3.14 or later")


class Injection:
    """A script for one process, and the folder that it lies in. Both belong to the process's user, who may put links in their places: they
    are known by their descriptors."""

    def __init__(self, pid: int) -> None:
        """Raises Unavailable."""
        check_python()
        try:
            seen = os.stat(f"/proc/{pid}")
            if not shares_files(pid):
                raise Unavailable(f"process {pid} has files of its own, as in a container", "run gputop inside of it")
            self.folder = tempfile.mkdtemp(prefix="gputop-inject-", dir="/tmp")  # mode 0700
            self._opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"no script can be made for process {pid}: {error.strerror}") from None
        self._owner = seen.st_uid, seen.st_gid
        self._script = -1
        self.job = Job(pid, self.folder, seen.st_uid)

    def begin(self, name: str, seconds: float, with_stack: bool) -> None:
        """Have the process run the script, which writes a trace of this name. Raises Unavailable."""
        path, script = os.path.join(self.folder, name), os.path.join(self.folder, _SCRIPT_NAME)
        call = f"_gputop({seconds!r}, {with_stack!r}, {path!r}, {os.path.join(self.folder, FAILED)!r})\ndel _gputop\n"
        try:
            self._script = os.open(_SCRIPT_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._opened)
            write_all(self._script, f"{SCRIPT}{call}".encode())
            if self._owner[0] != os.geteuid():
                os.fchown(self._script, *self._owner)
                os.fchown(self._opened, *self._owner)
            getattr(sys, "remote_exec")(self.job.pid, script)  # noqa: B009 - typed as missing before 3.14
        except PermissionError:
            raise Unavailable(why_not(self.job.pid)) from None
        except (OSError, RuntimeError, ValueError) as error:
            raise Unavailable(f"process {self.job.pid} cannot be injected: {error}", "it must run the same Python as gputop") from None

    def failed(self) -> str:
        """Reason why the script gave up; empty where it did not."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with suppress(OSError), open(os.open(FAILED, flags, dir_fd=self._opened), "rb") as file:
            seen = os.fstat(file.fileno())
            words = file.read(_MOST_REASON_BYTES) if stat.S_ISREG(seen.st_mode) and seen.st_uid == self._owner[0] else b""
            return words.decode(errors="replace") or "it gave no reason"
        return ""

    def end(self, is_over: bool) -> None:
        """Remove the folder. ``is_over``: the script has run. One that the process may still run is emptied and stays, for Python would
        print an error in the job if it were missing."""
        if is_over:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif self._script >= 0:
            with suppress(OSError):
                os.ftruncate(self._script, 0)
        for fd in (self._opened, self._script):
            if fd >= 0:
                os.close(fd)
