"""The rack runs out of power and pulls the card's brake: still cool, the GPU computes at 30 % of its clock."""

from __future__ import annotations

import ctypes
from collections import deque
from contextlib import AbstractContextManager

from tests.workloads import nvml_control
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_HW_SLOWDOWN, _HW_POWER_BRAKE = 0x8, 0x80
_FULL_MHZ, _BRAKED_MHZ = 1980, 585
_KERNELS_MS = (1.2, 3.1, 1.6, 3.6)
_AHEAD = 2


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu
    cuda = ctypes.CDLL("libcudart.so.12")
    events = deque(ctypes.c_void_p() for _ in range(_AHEAD))
    for event in events:
        cuda.cudaEventCreateWithFlags(ctypes.byref(event), 2)

    def step(_batch: object) -> None:
        slower = _FULL_MHZ / _BRAKED_MHZ if nvml_control.is_told() else 1.0
        gpu.copy_in(400_000, pinned=True)
        for length_ms in _KERNELS_MS:
            gpu.launch(length_ms * slower)
        events.rotate()
        if trainer.steps >= _AHEAD:
            cuda.cudaEventSynchronize(events[0])
        cuda.cudaEventRecord(events[0], None)

    trainer.fit(loader(Images(cpu_ms=0.4), workers=1, start="spawn", batch=4), step)


def disturb(running: Running) -> AbstractContextManager[None]:
    return nvml_control.saying(running, f"throttle {_HW_SLOWDOWN | _HW_POWER_BRAKE}\nsm_clock {_BRAKED_MHZ}\ntemp 52\n")


SCENARIO = Scenario(Label("compute-bound", "gpu-throttle"), train, disturb, nvml_control.from_the_start())
