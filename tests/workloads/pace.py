"""The pace of a running workload: its steps, or what its GPUs do for it and not for others that share them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.workloads import simgpu
from tests.workloads.runner import Running, descendants

LEAST = 0.01  # steps a second, or work, of a job that stands still
LOGGED = {"GPUTOP_STEP_LOG": "1"}  # variables with which a workload writes a line for each step


@dataclass(frozen=True, slots=True)
class Pace:
    """What a workload did in some seconds."""

    steps_per_s: float  # of all ranks; 0 of a workload that logs none
    work: float  # see `work`

    def gain(self, before: Pace) -> float:
        """How many times as fast as ``before``: by steps, if there are any on either side, else by the GPUs' work."""
        if self.steps_per_s or before.steps_per_s:
            return max(self.steps_per_s, LEAST) / max(before.steps_per_s, LEAST)
        return max(self.work, LEAST) / max(before.work, LEAST)


def pace(running: Running, seconds: float) -> Pace:
    """The pace in ``seconds`` from now on. Steps are those of a workload that was started with the variables `LOGGED`."""
    before, began = _steps(running), time.monotonic_ns()
    worked = work(running, seconds)
    return Pace((_steps(running) - before) / (time.monotonic_ns() - began) * 1e9, worked)


def _steps(running: Running) -> int:
    return sum(log.read_bytes().count(b"\n") for log in running.folder.glob("steps-*"))


def work(running: Running, seconds: float) -> float:
    """Share of the time in which the simulated GPUs work for the workload, mean over the GPUs, in ``seconds`` from now on.

    Work for processes to blame, and for those below them, is not counted: a GPU that two trainings share is as busy with one of them.
    """
    host = simgpu.attach(running.folder / "simgpu")
    gpus = host.dev[: host.devices]
    before, began = [(gpu.busy_ns(), gpu.booked_for()) for gpu in gpus], time.monotonic_ns()
    time.sleep(seconds)
    others = {*running.culprits, *descendants([*running.culprits])}
    worked = sum((gpu.busy_ns() - busy) * _part(gpu.booked_for(), booked, others) for gpu, (busy, booked) in zip(gpus, before, strict=True))
    return worked / (time.monotonic_ns() - began) / len(gpus)


def _part(after: dict[int, int], before: dict[int, int], others: set[int]) -> float:
    """Part of the newly booked work that is the workload's; all where nobody booked any."""
    booked = {pid: max(0, busy_ns - before.get(pid, 0)) for pid, busy_ns in after.items()}
    total = sum(booked.values())
    return 1.0 - sum(booked[pid] for pid in others & booked.keys()) / total if total else 1.0
