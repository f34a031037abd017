"""Processes that take CPU, under the names of what takes it on real hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.stubs.build import build
from tests.workloads.runner import Running

SOURCE = Path(__file__).parent / "hog.c"


@contextmanager
def hogs(
    running: Running, threads: dict[str, int], duty_pct: int = 100, period_ms: int = 50, through: tuple[str, ...] = ()
) -> Iterator[None]:
    """One process per name of ``threads``, each with so many threads, each thread busy ``duty_pct`` of each period.

    ``through`` is a command that executes another one, such as ``nice -n 19`` or ``taskset -c 1``.
    """
    with ExitStack() as stack:
        for name, count in threads.items():
            program = build(SOURCE, name, program=True)
            command = [*through, str(program), str(int(running.seconds) + 5), str(count), str(duty_pct), str(period_ms)]
            running.blame(stack.enter_context(running.child(command)).pid, name)
        yield
        running.account()
