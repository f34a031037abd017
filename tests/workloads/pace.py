"""The pace of a running workload: its steps, or what its GPUs do for it and not for others that share them."""

from __future__ import annotations

import time

from tests.workloads import simgpu
from tests.workloads.runner import Running, descendants

LOGGED = {"GPUTOP_STEP_LOG": "1"}  # variables with which a workload writes a line for each step


def pace(running: Running, seconds: float) -> float:
    """Steps a second of all ranks, in ``seconds`` from now on; of a workload that logs none, see `LOGGED`, its `work`."""
    before, began = _steps(running), time.monotonic_ns()
    worked = work(running, seconds)
    return (_steps(running) - before) / (time.monotonic_ns() - began) * 1e9 if before else worked


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
