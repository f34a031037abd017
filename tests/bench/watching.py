"""What watching costs a job: steps lost beside `gputop collect` with eBPF, as root, with a C compiler and bcc.

The same job runs without and with gputop in turns, with pauses of random length. Each turn is compared with the mean of the runs without
it before and after, since a shared machine's speed drifts. The loss is in steps per second of CPU time that the job used, so that
neighbours count less, and in steps per second. The first seconds, in which the probes are compiled and a storm is met for the first
time, have a column of their own.
"""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.figures import spread, table
from tests.bench.stage import stage
from tests.stubs.build import build

HERE = Path(__file__).parent.parent
GPUTOP = str(Path(sys.executable).parent / "gputop")
EMULATED, STEPPED = "cuMemcpyDtoDAsync_v2", "cuMemcpyHtoDAsync_v2"  # by the first instruction: tests/probes/libcuda.c
FIRST_S = 4.0  # s in which gputop starts and loads its probes


class Scene(NamedTuple):
    """A job as tests/workloads/watched.c makes it."""

    title: str
    kind: str
    per_s: int  # calls, steps or switches
    functions: tuple[str, ...] = (EMULATED,)


SCENES = (
    Scene("26,000 calls/s, emulated", "calls", 26_000),
    Scene("26,000 calls/s, single-stepped", "calls", 26_000, (STEPPED,)),
    Scene("200,000 calls/s, emulated", "calls", 200_000),
    Scene("200,000 calls/s, single-stepped", "calls", 200_000, (STEPPED,)),
    Scene("200,000 launches/s", "calls", 200_000, ("cuLaunchKernel",)),
    Scene("200,000 calls/s of four functions", "calls", 200_000, (EMULATED, STEPPED, "cuLaunchKernel", "cuStreamSynchronize")),
    Scene("3,000 calls/s, emulated (below the alarm)", "calls", 3_000),
    Scene("100,000 switches/s, pipe", "pipe", 100_000),
    Scene("100,000 switches/s, futex", "futex", 100_000),
    Scene("a step of 6 ms with 20 calls", "loop", 160),
)


class Job:
    """The running job."""

    def __init__(self, pid: int, counter: mmap.mmap) -> None:
        self.pid, self._counter = pid, counter

    def rates(self, seconds: float) -> tuple[float, float]:
        """(steps per second of CPU time, steps per second) over the next ``seconds``."""
        began, cpu_ns, count = time.monotonic(), self._cpu_ns(), self._count()
        time.sleep(seconds)
        steps, cpu_s = self._count() - count, (self._cpu_ns() - cpu_ns) / 1e9
        return steps / cpu_s, steps / (time.monotonic() - began)

    def _count(self) -> int:
        return int.from_bytes(self._counter[:8], "little")

    def _cpu_ns(self) -> int:
        return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat"))


@contextmanager
def job(scene: Scene) -> Iterator[Job]:
    """Start it, and end it."""
    program = build(HERE / "workloads" / "watched.c", "watched", "-ldl", program=True)
    library = build(HERE / "probes" / "libcuda.c", "libcuda.so.1")
    with tempfile.NamedTemporaryFile() as counter:
        counter.write(bytes(mmap.PAGESIZE))
        counter.flush()
        command = [str(program), str(library), counter.name, str(scene.per_s), scene.kind, *scene.functions]
        with mmap.mmap(counter.fileno(), mmap.PAGESIZE) as shared, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                yield Job(process.pid, shared)
            finally:
                process.kill()


@contextmanager
def watched(env: dict[str, str], *options: str) -> Iterator[None]:
    """gputop's collector, with nobody reading."""
    with subprocess.Popen([GPUTOP, "collect", *options], stdout=subprocess.DEVNULL, env=env) as process:
        try:
            yield
        finally:
            process.terminate()


class Loss(NamedTuple):
    """Per cent of the steps lost in each turn."""

    of_cpu: list[float]
    of_time: list[float]
    first: list[float]  # of CPU time, in the first seconds


def losses(scene: Scene, turns: int, run_s: float, *options: str) -> Loss:
    """The losses of one scene."""
    loss = Loss([], [], [])
    with job(scene) as running, stage(1, [running.pid]) as env:
        before = running.rates(run_s)
        for _ in range(turns):
            time.sleep(random.uniform(0.0, 1.0))
            with watched(env, *options):
                first, beside = running.rates(FIRST_S), running.rates(run_s)
            time.sleep(random.uniform(0.5, 1.5))  # detaching
            after = running.rates(run_s)
            per_cpu_s, per_s = ((old + new) / 2 for old, new in zip(before, after, strict=True))
            loss.of_cpu.append(100 * (1 - beside[0] / per_cpu_s))
            loss.of_time.append(100 * (1 - beside[1] / per_s))
            loss.first.append(100 * (1 - first[0] / per_cpu_s))
            before = after
    return loss


def report(turns: int = 8, run_s: float = 4.0, wanted: str = "") -> Iterator[str]:
    """The table."""
    if os.geteuid() != 0:
        yield "## Watching\n\nnot measured: needs root"
        return
    yield f"## Steps that a job loses while it is watched with eBPF ({turns} turns of {run_s:.0f} s, %, min/median/max)"
    rows = []
    for scene in [scene for scene in SCENES if wanted in scene.title]:
        loss = losses(scene, turns, run_s)
        rows.append([scene.title, spread(loss.of_cpu, 2), spread(loss.of_time, 2), spread(loss.first, 2)])
    yield table(["job", "per CPU second", "per second", f"per CPU second, first {FIRST_S:.0f} s"], rows)
