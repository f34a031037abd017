"""The NVML stub, set up for a measurement or a test: GPUs, their processes, what its calls cost."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.stubs.build import build

NVML = Path(__file__).parent.parent / "stubs" / "nvml" / "nvml.c"
BUSY = ("util 97", "util_low 12", "wave_ms 1700", "mem_util 40", "sm_active 11", "power_mw 412000", "temp 54", "pcie_rx_mb_s 3100")
REAL_COSTS = ("delay.* 300", "delay.PcieThroughput 20000", "delay.*RunningProcesses 4000")
"""Microseconds per call as drivers have been seen to take."""


@contextmanager
def stage(gpus: int, pids: Sequence[int], *settings: str) -> Iterator[dict[str, str]]:
    """An environment whose NVML shows ``gpus`` GPUs, with ``pids`` spread over them; ``settings`` are lines for the control file."""
    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder) / "gpus.conf"
        control.write_text("\n".join([f"gpus {gpus}", *BUSY, *_processes(gpus, pids), *settings]) + "\n")
        library = build(NVML, "libnvidia-ml.so.1")
        yield {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "GPUTOP_NVML_CONTROL": str(control)}


def _processes(gpus: int, pids: Sequence[int]) -> Iterator[str]:
    for gpu in range(gpus):
        yield f"gpu{gpu}.procs " + ", ".join(f"{pid}:{1024 + 64 * i}:{20 + i % 60}" for i, pid in enumerate(pids[gpu::gpus]))
