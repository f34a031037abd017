"""A fan tray of the chassis fails: the GPU reaches its slowdown temperature, clocks down to half, cools a little, and heats up again.

The job accumulates gradients over six micro-batches whose data is always there. Of each two seconds the driver holds the clocks down for
1.7 (hardware slowdown, thermal), in which the same kernels take more than twice as long. The GPU is busy throughout and does half of the
work it could: it is throttled by heat.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.nvml_control import Step, from_the_start, held, saying
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_MICRO_BATCHES = 6
_HOT = "throttle 72\ntemp 92\nmem_temp 98\nsm_clock 870\nfan 100\npower_mw 310000\n"  # hardware slowdown and hardware thermal slowdown
_HOT_S, _COOL_S = 1.7, 0.3


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), held(_micro_batch(trainer, 12), _micro_batch(trainer, 27)))


def _micro_batch(trainer: Trainer, length_ms: float) -> Step:
    def step(_batch: object) -> None:
        trainer.gpu.copy_in(1 << 20, pinned=True)
        trainer.gpu.launch(length_ms)
        if trainer.steps % _MICRO_BATCHES == _MICRO_BATCHES - 1:
            trainer.gpu.launch(length_ms / 4)  # the optimizer
            trainer.gpu.synchronize()

    return step


@contextmanager
def heating(running: Running) -> Iterator[None]:
    """Hot for most of the time, until the end."""
    over = Event()

    def heat() -> None:
        while not over.is_set():
            with saying(running, _HOT):
                over.wait(_HOT_S)
            time.sleep(_COOL_S)

    thread = Thread(target=heat)
    thread.start()
    yield
    over.set()
    thread.join()


SCENARIO = Scenario(Label("compute-bound", "gpu-throttle"), train, heating, from_the_start())
