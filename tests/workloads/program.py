"""Programs in Python that are no torch: processes that run a function of a scenario, its steps logged as a trainer's are.

`python -m tests.workloads.program MODULE FUNCTION ARGUMENT…` calls the function with the arguments as text. The module imports no torch;
what a type alone needs stands under TYPE_CHECKING.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from subprocess import Popen
from typing import NoReturn

from tests.workloads import simgpu
from tests.workloads.gpu import SMS, Gpu
from tests.workloads.runner import Running

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_ARG_END = 1, 15, 35, 9
_STEADY_STEPS = 5


class Job:
    """The process on the GPU: its device and its steps."""

    def __init__(self, device: int = 0) -> None:
        self.gpu = Gpu(device)
        self._steps = 0
        log = os.environ.get("GPUTOP_STEP_LOG") and folder() / f"steps-{device}"
        self._log = log.open("a", buffering=1) if log else None

    def step(self) -> None:
        """Count a step as `Trainer.tick` does, without a deadline: the runner ends the process."""
        self._steps += 1
        if self._log:
            self._log.write(f"{time.monotonic():.6f}\n")
        if self._steps == _STEADY_STEPS:
            print("ready", flush=True)

    def compute(self, length_ms: float, kernels: int = 8, bytes_in: int = 1 << 16, blocks: int = SMS) -> None:
        """A pinned copy to the GPU, so many kernels, and the wait for them."""
        self.gpu.copy_in(bytes_in, pinned=True)
        for _ in range(kernels):
            self.gpu.launch(length_ms / kernels, blocks)
        self.gpu.synchronize()


def folder() -> Path:
    """The workload's."""
    return Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])


def raised(flag: str) -> bool:
    """Whether the disturbance has made the file ``flag`` (`native.flag`)."""
    return (folder() / flag).exists()


def installed(command: str, function: Callable[[], object], workload: Path | None = None) -> list[str]:
    """``command`` as it can be executed, and then runs ``function``: a script in the workload's folder, or `python3 -m MODULE …`."""
    name, *words = command.split()
    place = (workload or folder()) / "venv"
    is_module = words[:1] == ["-m"]
    path = place.joinpath(*words[1].split(".")).with_suffix(".py") if is_module else place / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    main = f"from {function.__module__} import {function.__name__} as main\nfrom tests.workloads.program import end_with_parent"
    path.write_text(f"#!{sys.executable}\n{main}\n\nend_with_parent()\nmain()\n")
    path.chmod(0o755)
    if is_module:
        (path.parent / "__init__.py").touch()
        os.environ["PYTHONPATH"] = f"{place}:{os.environ['PYTHONPATH']}"
    return [sys.executable if is_module else str(path), *words]


@contextmanager
def beside(running: Running, command: str, function: Callable[[], object]) -> Iterator[Popen[str]]:
    """Another script than the trainer, an `installed` command in a session of its own, which is ready."""
    running.env["GPUTOP_WORKLOAD_FOLDER"] = str(running.folder)
    with running.child(installed(command, function, running.folder), stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def become_command(command: str, function: Callable[[], object]) -> NoReturn:
    """Go on as an `installed` command, as `become` does."""
    argv = installed(command, function)
    simgpu.leave()
    os.execv(argv[0], argv)


def become(function: Callable[..., object], *arguments: object) -> NoReturn:
    """Go on as a process that runs ``function``: pid, session and standard output stay, torch goes."""
    command = _command(function, *arguments)
    simgpu.leave()
    os.execv(command[0], command)


@contextmanager
def serving(running: Running, function: Callable[..., object], *arguments: object) -> Iterator[Popen[str]]:
    """A process that runs ``function`` in a session of its own; what it prints first (one line, when it serves) is its port.

    The port is in the workload's environment as GPUTOP_SERVICE_PORT.
    """
    running.env["GPUTOP_WORKLOAD_FOLDER"] = str(running.folder)
    with running.child(_command(function, *arguments), stdout=-1) as service:
        assert service.stdout is not None
        running.env["GPUTOP_SERVICE_PORT"] = service.stdout.readline().strip()
        yield service


def service() -> socket.socket:
    """A connection to it."""
    connection = socket.create_connection(("127.0.0.1", int(os.environ["GPUTOP_SERVICE_PORT"])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def forked(name: str, work: Callable[[], object]) -> int:
    """The pid of a child called ``name`` that does ``work``; it ends with its parent, or when a peer has left."""
    if pid := os.fork():
        return pid
    end_with_parent()
    called(name)
    with suppress(ConnectionError, EOFError):
        work()
    os._exit(0)


def called(name: str) -> None:
    """Name this process, as `setproctitle` does: 15 bytes of it are kept."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def titled(*words: str, name: str = "") -> None:
    """Let ``words`` stand in the place of this process's command line, as far as there is room, and ``name`` or the first in its name's."""
    begin, end = _command_line()
    text = b"".join(word.encode() + b"\0" for word in words)[: end - begin]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))
    ctypes.CDLL(None).prctl(_PR_SET_MM, _PR_SET_MM_ARG_END, ctypes.c_ulong(begin + len(text)), 0, 0)  # else empty words follow: no root
    called(name or words[0])


@cache
def _command_line() -> tuple[int, int]:
    """Where it lies in memory, before any title took its place."""
    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    return begin, end


def end_with_parent() -> None:
    """As every process of a workload ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def receive(source: socket.socket, count: int) -> bytes:
    """So many bytes."""
    if len(message := source.recv(count, socket.MSG_WAITALL)) == count:
        return message
    raise ConnectionError("the other side has left")


def burn(cpu_ms: float) -> int:
    """Parse text in pure Python for ``cpu_ms`` of this thread's CPU time, with the GIL held."""
    until, total = time.thread_time() + cpu_ms / 1e3, 0
    while time.thread_time() < until:
        for word in ("3.1415", "2.7182", "1.4142", "0.5772"):
            total += int(float(word) * 1e4) % 7919
    return total


def _command(function: Callable[..., object], *arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.workloads.program", function.__module__, function.__name__, *map(str, arguments)]


if __name__ == "__main__":
    end_with_parent()
    getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*sys.argv[3:])
