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
from pathlib import Path
from subprocess import Popen
from typing import NoReturn

from tests.workloads import simgpu
from tests.workloads.gpu import Gpu
from tests.workloads.runner import Running

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_STEADY_STEPS = 5


class Job:
    """The process on the GPU: its device and its steps."""

    def __init__(self) -> None:
        self.gpu = Gpu()
        self._steps = 0
        log = os.environ.get("GPUTOP_STEP_LOG") and folder() / "steps-0"
        self._log = log.open("a", buffering=1) if log else None

    def step(self) -> None:
        """Count a step as `Trainer.tick` does, without a deadline: the runner ends the process."""
        self._steps += 1
        if self._log:
            self._log.write(f"{time.monotonic():.6f}\n")
        if self._steps == _STEADY_STEPS:
            print("ready", flush=True)

    def compute(self, length_ms: float, kernels: int = 8, bytes_in: int = 1 << 16) -> None:
        """A pinned copy to the GPU, so many kernels, and the wait for them."""
        self.gpu.copy_in(bytes_in, pinned=True)
        for _ in range(kernels):
            self.gpu.launch(length_ms / kernels)
        self.gpu.synchronize()


def folder() -> Path:
    """The workload's."""
    return Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])


def raised(flag: str) -> bool:
    """Whether the disturbance has made the file ``flag`` (`native.flag`)."""
    return (folder() / flag).exists()


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
