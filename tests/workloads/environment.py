"""What a process needs to find the simulated GPU instead of a real one, for workloads, tests and benches alike."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.stubs import cuda
from tests.stubs.build import build
from tests.workloads import simgpu
from tests.workloads.gpu import KERNELS

ROOT = Path(__file__).resolve().parents[2]


def make(folder: Path, devices: int = 1) -> dict[str, str]:
    """The environment in which CUDA and NVML are our stubs over one simulated host of ``devices`` GPUs kept in ``folder``.

    Children of one such environment share the GPUs: what a trainer books, NVML reports. With `gpu.KERNELS` they are what is really here.
    """
    ours = {**os.environ, "PYTHONPATH": ":".join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))), "PATH": _path()}
    if KERNELS:
        return ours
    path = folder / "simgpu"
    simgpu.create(path, devices)
    folders = [str(cuda.driver().parent), str(cuda.runtime().parent), str(nvml().parent)]
    return {**ours, "GPUTOP_SIMGPU": str(path), "LD_LIBRARY_PATH": ":".join(folders)}


def _path() -> str:
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"


def nvml() -> Path:
    """The NVML stub."""
    return build(ROOT / "tests" / "stubs" / "nvml" / "nvml.c", "libnvidia-ml.so.1")
