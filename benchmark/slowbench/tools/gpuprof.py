"""gpuprof, inside the job by its manual interface; its insights are read of its database while the job runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from slowbench.adapter import MORE_WORKERS, answer, every, ready

_MEANS = (  # the first insight whose title fits, worst severity first: symptom, cause
    (re.compile("CPU pegged"), ("waits-for-input", "slow-preparation")),
    (re.compile("disk hot|Cache thrashing|Cold-cache"), ("waits-for-input", "slow-disk")),
    (re.compile("Host memory pressure"), ("waits-for-input", "short-memory")),
    (re.compile("waiting on the loader|Prefetch queue|worker imbalance"), ("waits-for-input", "unknown")),
    (re.compile("unaccounted"), ("busy-in-vain", "tiny-kernels")),
    (re.compile("arithmetic intensity"), ("busy-in-vain", "too-little-work")),
    (re.compile("thermal"), ("computes-slowly", "gpu-throttled")),
    (re.compile("PCIe RX"), ("waits-for-copies", "slow-copies")),
    (re.compile("NCCL comm"), ("waits-for-network", "slow-network")),
    (re.compile("No major bottlenecks"), ("works", "none")),
)
_SEVERITIES = ("high", "medium", "low")
_profiler: list[Any] = []


def instrument(loader: Iterable[object], step: Callable[[object], None]) -> tuple[Iterable[object], Callable[[object], None]]:
    """The loop with gpuprof around its loader and its step, as documented for custom loops."""
    from gpuprof import GpuProfiler

    if not _profiler:
        _profiler.append(made := GpuProfiler("job", db_path=str(_database())))
        made.start()
    profiler, number = _profiler[0], 0

    def profiled(batch: object) -> None:
        nonlocal number
        number += 1
        with profiler.step(number) as one, one.phase("forward"):
            step(batch)

    return profiler.wrap_dataloader(loader), profiled


def _database() -> Path:
    return Path(os.environ["GPUTOP_WORKLOAD_FOLDER"], "gpuprof.db")


def main() -> None:
    """Read the insights each second."""
    import gpuprof
    from gpuprof.insights import analyze

    ready(gpuprof.__version__, ["code", "restart"])
    for _ in every(1.0):
        if not _database().exists():  # the job's loop is none that can be wrapped
            continue
        insights = sorted(analyze(str(_database()), 1)["insights"], key=lambda one: _SEVERITIES.index(one["severity"]))
        for one in insights:
            meaning = next((meaning for pattern, meaning in _MEANS if pattern.search(one["title"])), None)
            if meaning is not None:
                advice = one["recommendation"]
                answer(*meaning, advice=advice, command=MORE_WORKERS if "Increase DataLoader num_workers" in advice else "")
                break
        else:
            answer()


if __name__ == "__main__":
    main()
