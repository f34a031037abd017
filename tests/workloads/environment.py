"""What a process needs to find the simulated GPU instead of a real one, for workloads, tests and benches alike."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.stubs import cuda
from tests.stubs.build import build
from tests.workloads import simgpu

ROOT = Path(__file__).resolve().parents[2]


def make(folder: Path, devices: int = 1) -> dict[str, str]:
    """The environment in which CUDA and NVML are our stubs over one simulated host of ``devices`` GPUs kept in ``folder``.

    Children of one such environment share the GPUs: what a trainer books, NVML reports.
    """
    path = folder / "simgpu"
    simgpu.create(path, devices)
    folders = [str(cuda.driver().parent), str(cuda.runtime().parent), str(nvml().parent)]
    return {
        **os.environ,
        "GPUTOP_SIMGPU": str(path),
        "LD_LIBRARY_PATH": ":".join(folders),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
    }


def nvml() -> Path:
    """The NVML stub."""
    return build(ROOT / "tests" / "stubs" / "nvml" / "nvml.c", "libnvidia-ml.so.1")
