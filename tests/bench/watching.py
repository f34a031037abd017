"""What watching costs a job: steps lost beside `gputop collect`, with eBPF (as root, with bcc) and without; needs a C compiler.

The same job runs without and with gputop in turns, with pauses of random length, and each turn is compared with the mean of the runs
before and after. What counts is the CPU time of a step in units of a loop that the job runs between its steps: a shared machine's speed
changes by more than a probe costs. The first seconds, in which the probes are compiled and a storm is met for the first time, have a
column of their own.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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
    Scene("20,000 switches/s, pipe", "pipe", 20_000),
    Scene("100,000 switches/s, pipe", "pipe", 100_000),
    Scene("100,000 switches/s, futex", "futex", 100_000),
    Scene("100,000 switches/s, sched_yield", "yield", 100_000),
    Scene("100,000 switches/s, 16 threads in a ring", "ring", 100_000),
    Scene("5,000 switches/s, pipe (counted all the time)", "pipe", 5_000),
    Scene("a step of 6 ms with 20 calls", "loop", 160),
)
SAMPLED = (
    Scene("200,000 launches/s", "calls", 200_000, ("cuLaunchKernel",)),
    Scene("34,000 launches/s", "calls", 34_000, ("cuLaunchKernel",)),
    Scene("computing, 200 launches/s", "calls", 200, ("cuLaunchKernel",)),
)


class Job:
    """The running job."""

    def __init__(self, pid: int, counter: mmap.mmap) -> None:
        self.pid, self._counter = pid, counter

    def cost(self, seconds: float) -> float:
        """CPU time of a turn over the next ``seconds``, in spins."""
        before = self.counters()
        time.sleep(seconds)
        turns, turns_ns, spins, spins_ns = (new - old for new, old in zip(self.counters(), before, strict=True))
        return turns_ns / turns / (spins_ns / spins)

    def counters(self) -> tuple[int, ...]:
        """Turns, their CPU time in ns, spins, their CPU time in ns."""
        return struct.unpack_from("<4Q", self._counter)


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

    watched: list[float]
    first: list[float]  # in the first seconds


def losses(scene: Scene, turns: int, run_s: float, *options: str) -> Loss:
    """The losses of one scene."""
    loss = Loss([], [])
    with job(scene) as running, stage(1, [running.pid]) as env:
        before = running.cost(run_s)
        for _ in range(turns):
            time.sleep(random.uniform(0.0, 1.0))
            with watched(env, *options):
                first, beside = running.cost(FIRST_S), running.cost(run_s)
            time.sleep(random.uniform(0.5, 1.5))  # detaching
            after = running.cost(run_s)
            loss.watched.append(100 * (1 - (before + after) / 2 / beside))
            loss.first.append(100 * (1 - (before + after) / 2 / first))
            before = after
    return loss


def report(turns: int = 8, run_s: float = 4.0) -> Iterator[str]:
    """Two tables."""
    runs = f"{turns} turns of {run_s:.0f} s, min/median/max"
    yield f"## Steps that a job loses while its main thread is sampled, without eBPF ({runs})"
    yield _rows(SAMPLED, turns, run_s, "--no-ebpf")
    if os.geteuid() != 0:
        yield "## Watching with eBPF\n\nnot measured: needs root"
        return
    yield f"## Steps that a job loses while it is watched with eBPF ({runs})"
    yield _rows(SCENES, turns, run_s)


def _rows(scenes: Sequence[Scene], turns: int, run_s: float, *options: str) -> str:
    found = [(scene.title, losses(scene, turns, run_s, *options)) for scene in scenes]
    rows = [[title, spread(loss.watched, 2), spread(loss.first, 2)] for title, loss in found]
    return table(["job", "steps lost, %", f"in the first {FIRST_S:.0f} s"], rows)
