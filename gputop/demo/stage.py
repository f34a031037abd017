"""The stage: starts trainers and disturbances, lets things go wrong in turns, and ends everybody.

Runs as ``python -m gputop.demo.stage SCENARIO GPU_FD FILE_FD SECONDS`` in a session of its own, until its standard input is closed:
that happens however its parent ends, and needs no permission, which a parent that was root and is no more would lack for a signal.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from gputop.demo import quota, signals
from gputop.demo.scenarios import HOGS, MOST_CPUS, SCENARIOS, Scenario, cpus

CALM_S, TROUBLE_S = 8.0, 25.0
"""Healthy first, then trouble, in turns: the dip and its cause stand beside each other on the time axis."""
FIRST_CALM_S = 4.0
"""Whoever has just come should not wait for what there is to see."""
_QUOTA_CPUS = 0.4
_TRAIN = Path(__file__).with_name("train.py")


class _Over(Exception):
    """Told to end."""


class Stage:
    """One scenario, as long as the ``with`` block lasts."""

    def __init__(self, scenario: Scenario, name: str, gpu_fd: int, file_fd: int) -> None:
        self._scenario, self._name, self._gpu_fd, self._file_fd = scenario, name, gpu_fd, file_fd
        self._stack = ExitStack()
        self._signals_fd = signals.create()
        self._signals = signals.Signals(self._signals_fd)
        self._group: Path | None = None
        self._trainers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Stage:
        try:
            if self._scenario.quota:
                self._group = self._stack.enter_context(quota.group())
            for rank in range(self._scenario.ranks):
                self._train(rank)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def play(self, seconds: float) -> None:
        """Calm and trouble in turns, until the time is over or a trainer has ended."""
        end, calm_s = time.monotonic() + seconds, FIRST_CALM_S
        while time.monotonic() < end:
            self._wait(min(end, time.monotonic() + calm_s))
            calm_s = CALM_S
            with ExitStack() as trouble:
                trouble.callback(self._set_trouble, False)
                self._set_trouble(True)
                if self._scenario.hogs:
                    for name, threads in HOGS.items():
                        self._hog(name, threads * cpus(), trouble)
                self._wait(min(end, time.monotonic() + TROUBLE_S))

    def _set_trouble(self, on: bool) -> None:
        self._signals.disturbed = on
        if self._group is not None:
            quota.limit(self._group, _QUOTA_CPUS if on else None)

    def _wait(self, until: float) -> None:
        while time.monotonic() < until:
            closed = select.select([sys.stdin], [], [], 0.1)[0]
            if closed or any(trainer.poll() is not None for trainer in self._trainers):
                raise _Over

    def _train(self, rank: int) -> None:
        fds = [self._gpu_fd, self._signals_fd, self._file_fd]
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self._scenario.ranks)} if self._scenario.ranks > 1 else {}
        group = self._group
        trainer = subprocess.Popen(
            [sys.executable, str(_TRAIN), self._name, str(os.getpid()), *map(str, fds)], env={**os.environ, **ranks},
            pass_fds=[fd for fd in fds if fd >= 0], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            preexec_fn=None if group is None else lambda: join(group),
        )  # fmt: skip
        self._trainers.append(trainer)
        self._stack.callback(end, trainer)

    def _hog(self, name: str, threads: int, trouble: ExitStack) -> None:
        """A process with so many runnable threads; run by ``-c``, so that it goes by its name."""
        code = f"import sys; del sys.path[0]; from gputop.demo.work import hog; hog({name!r}, {os.getpid()}, {threads}, {TROUBLE_S + 5})"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
        trouble.callback(end, process)


def join(group: Path) -> None:
    """Put the calling process, a trainer about to begin, into the group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and wait for it; its own children die with it."""
    process.kill()
    process.wait()


def _on_signal(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise _Over


def main(name: str, gpu_fd: str, file_fd: str, seconds: str) -> None:
    """Play a scenario."""
    signal.signal(signal.SIGTERM, _on_signal)
    if cpus() > MOST_CPUS:
        os.nice(10)
    try:
        with Stage(SCENARIOS[name], name, int(gpu_fd), int(file_fd)) as stage:
            stage.play(float(seconds))
    except _Over:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
