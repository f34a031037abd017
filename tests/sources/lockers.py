"""A program of C whose main thread sleeps at a lock that another thread or process has: `lockers.c`."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.require import require

_BUILT: list[tempfile.TemporaryDirectory[str]] = []  # kept until the tests end


@cache
def program() -> Path:
    """The program, built once."""
    require("cc")
    _BUILT.append(tempfile.TemporaryDirectory(prefix="gputop-lockers-"))
    built, source = Path(_BUILT[-1].name) / "lockers", Path(__file__).with_name("lockers.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-pthread", "-o", str(built), str(source)], check=True)
    return built


@contextmanager
def sleeping(kind: str, where: str, holds: str = "asleep", *before: str) -> Iterator[tuple[int, int, int]]:
    """(pid of the holder, the thread that holds, pid of the sleeper), each by its own account."""
    with subprocess.Popen([*before, str(program()), kind, where, holds], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            pid, tid, own = map(int, process.stdout.readline().split())
            yield pid, tid, own
        finally:
            process.kill()
