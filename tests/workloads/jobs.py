"""Processes on the simulated GPU for tests and benches that need no label."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import runner

_HERE = Path(__file__).parent


@contextmanager
def training(
    env: dict[str, str], workers: int = 2, start: str = "fork", seconds: float = 60, **load: float
) -> Iterator[subprocess.Popen[str]]:
    """A steady torch trainer whose DataLoader has ``workers`` processes begun by ``start``; ``load``: cpu_ms, gpu_ms.

    ``env`` is one of `environment.make`. Everything has ended when the context does, or after ``seconds``.
    """
    flags = [text for key, value in load.items() for text in (f"--{key.replace('_', '-')}", str(value))]
    command = ["plain_train.py", "--workers", str(workers), "--start", start, "--seconds", str(seconds), *flags]
    with _running(env, command) as trainer:
        yield trainer


@contextmanager
def idlers(env: dict[str, str], count: int, seconds: float = 60, devices: int = 1) -> Iterator[list[int]]:
    """``count`` processes with a context and some memory, spread over ``devices``; their pids."""
    with ExitStack() as stack:
        commands = [["gpu_idler.py", str(seconds), str(number % devices)] for number in range(count)]
        yield [stack.enter_context(_running(env, command)).pid for command in commands]


@contextmanager
def _running(env: dict[str, str], command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A script of this folder in a session of its own, from its first line on."""
    argv = [sys.executable, str(_HERE / command[0]), *command[1:]]
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise runner.NotReady(f"{command[0]} ended before it was ready")
        yield process
    finally:
        runner.end(process)
