"""The stage: starts trainers and disturbances, lets things go wrong in turns, and ends them all.

`staged` starts it as ``python -m gputop.demo.stage SCENARIO GPU_FD FILE_FD SECONDS`` in a session of its own. It ends when its standard
input is closed, which happens however its parent ends. A signal would not do: a parent that has given up root may not send one.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from gputop.demo.resources import device_of, group_below, limit_reads, make_file, quota_parent, read_limit_parent, set_quota
from gputop.demo.scenarios import HOGS, HOGS_OF_A_CPU, MOST_CPUS, SCENARIOS, Scenario, cpu_of, cpus
from gputop.demo.work import DISTURBED, READS_SLOWLY, create_signals, map_signals
from gputop.sources import simulated
from gputop.system.errors import UserError, starting
from gputop.system.program import argv_of

FIRST_CALM_S, TROUBLE_S, CALM_S = 8.0, 34.0, 18.0  # s of the acts: the first three are a minute, as long as the time axis
MOST_TROUBLE_S = 120.0  # s: an experiment (a minute at most) makes the trouble last
_QUOTA_CPUS = 0.4  # CPUs that the quota of `throttled` leaves
_READ_BYTES_PER_S = 8 << 20  # that the limit of `slow-disk` leaves: a quarter of what its GPU takes
_TRAIN = Path(__file__).with_name("train.py")


@contextmanager
def staged(name: str, seconds: float) -> Iterator[dict[str, str]]:
    """Run scenario ``name`` for ``seconds``, at most while the ``with`` block lasts; gives the environment in which a collector sees its
    GPU (`simulated.VARIABLE` names its memory). Raises UserError."""
    scenario = SCENARIOS[name]
    if scenario.quota:
        quota_parent()
    if scenario.pins and cpus() < 2:
        raise UserError(f"{name} needs two CPUs, and this process may use one: gputop demo shows another scenario")
    fds = [simulated.create(scenario.ranks), make_file() if scenario.file else -1]
    try:
        with starting():
            stage = subprocess.Popen(
                argv_of("gputop.demo.stage", name, *map(str, fds), str(seconds)),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                pass_fds=[fd for fd in fds if fd >= 0],
            )  # fmt: skip
        try:
            yield {**os.environ, simulated.VARIABLE: f"/proc/{os.getpid()}/fd/{fds[0]}"}
        finally:
            _end_stage(stage)
    finally:
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _end_stage(stage: subprocess.Popen[bytes]) -> None:
    """Let the stage end its processes; kill it after ten seconds, and the kernel kills its children with it."""
    assert stage.stdin is not None
    stage.stdin.close()
    try:
        stage.wait(10.0)
    except subprocess.TimeoutExpired:
        stage.kill()
        stage.wait()


class _Over(Exception):
    """The stage is to end."""


class Stage:
    """One scenario on its stage."""

    def __init__(self, scenario: Scenario, name: str, gpu_fd: int, file_fd: int) -> None:
        self._scenario, self._name, self._gpu_fd = scenario, name, gpu_fd
        self._stack = ExitStack()
        self._file_fd = file_fd
        self._signals_fd = create_signals()
        self._signals = map_signals(self._signals_fd)
        self._words = simulated.attach(gpu_fd)
        self._group: Path | None = None
        self._trainers: list[subprocess.Popen[bytes]] = []

    def play(self, seconds: float) -> None:
        """Train with calm and trouble in turns, for ``seconds``. Raises _Over if a trainer ends or the stage is asked to end."""
        with self._stack:
            self._stack.callback(self._words.__setitem__, simulated.ACT, simulated.END)
            above = quota_parent() if self._scenario.quota else read_limit_parent(self._file_fd) if self._scenario.file else None
            if above is not None:
                self._group = self._stack.enter_context(group_below(above))
            for rank in range(self._scenario.ranks):
                self._train(rank)
            end, calm, calm_s = time.monotonic() + seconds, simulated.CALM, FIRST_CALM_S
            while time.monotonic() < end:
                self._play_act(calm, calm_s, end)
                calm, calm_s = simulated.OVER, CALM_S
                with ExitStack() as trouble:
                    trouble.callback(self._set_trouble, False)
                    self._set_trouble(True)
                    for name, threads, held in self._hogs():
                        self._hog(name, threads, held, trouble)
                    self._play_act(simulated.TROUBLE, TROUBLE_S, end)

    def _play_act(self, act: int, seconds: float, end: float) -> None:
        """Wait until the act is over, and write the act's number into the GPU's memory; trouble lasts longer if the screen asks for it."""
        began = time.monotonic()
        until = min(end, began + seconds)
        words = self._words
        words[simulated.ACT_SINCE], words[simulated.ACT_UNTIL] = int(1e9 * began), int(1e9 * until)
        words[simulated.ACT] = act if self._scenario.turns else simulated.STEADY
        self._wait(until)
        while act == simulated.TROUBLE and (now := time.monotonic()) < min(end, began + MOST_TROUBLE_S, words[simulated.ACT_HOLD] / 1e9):
            self._wait(now + 0.1)

    def _hogs(self) -> list[tuple[str, int, set[int]]]:
        """(name, threads, CPUs that it is held to) of each process that takes CPUs."""
        if not self._scenario.hogs:
            return []
        if self._scenario.ranks > 1:
            return [(next(iter(HOGS)), HOGS_OF_A_CPU, {cpu_of(1)})]
        return [(name, threads * cpus(), os.sched_getaffinity(0)) for name, threads in HOGS.items()]

    def _set_trouble(self, on: bool) -> None:
        slow = self._group is not None and self._scenario.file
        self._signals[0] = (READS_SLOWLY if slow else DISTURBED) if on else 0
        if self._group is not None and slow:
            limit_reads(self._group, device_of(self._file_fd), _READ_BYTES_PER_S if on else None)
        elif self._group is not None:
            set_quota(self._group, _QUOTA_CPUS if on else None)

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

    def _hog(self, name: str, threads: int, held: set[int], trouble: ExitStack) -> None:
        """Start a process with ``threads`` runnable threads; by ``-c``, so that it is listed by its name and not as a script."""
        work = f"hog({name!r}, {os.getpid()}, {threads}, {MOST_TROUBLE_S + 5})"
        code = f"import sys; del sys.path[0]; from gputop.demo.work import hog; {work}"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
        os.sched_setaffinity(process.pid, held)
        trouble.callback(end, process)


def join(group: Path) -> None:
    """Put the calling process into the group; a trainer does it between fork and exec."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and wait for it; its own children die with it."""
    process.kill()
    process.wait()


def _on_signal(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise _Over


def main(name: str, gpu_fd: str, file_fd: str, seconds: str) -> None:
    signal.signal(signal.SIGTERM, _on_signal)
    if cpus() > MOST_CPUS:
        os.nice(10)
    try:
        Stage(SCENARIOS[name], name, int(gpu_fd), int(file_fd)).play(float(seconds))
    except _Over:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
