"""The script polls events instead of synchronizing: it launches two steps ahead and asks in a loop whether the older one is done.

The loop burns a whole CPU and calls CUDA tens of thousands of times a second, which looks terrible and costs nothing, since the other CPU
is enough for the one worker. The GPU always has the next step in its queue. Nothing is wrong.
"""

from __future__ import annotations

import ctypes
from collections import deque

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_AHEAD = 2


def train(trainer: Trainer) -> None:
    gpu, cuda = trainer.gpu, trainer.gpu._cuda
    under_way: deque[ctypes.c_void_p] = deque()
    done = [ctypes.c_void_p() for _ in range(_AHEAD + 1)]
    for event in done:
        cuda.cudaEventCreate(ctypes.byref(event))

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        for _ in range(4):
            gpu.launch(5)
        event = done.pop()
        cuda.cudaEventRecord(event, None)
        under_way.append(event)
        if len(under_way) > _AHEAD:
            while cuda.cudaEventQuery(under_way[0]):
                pass
            done.append(under_way.popleft())

    trainer.fit(loader(Images(cpu_ms=0.5), workers=1), step)


SCENARIO = Scenario(HEALTHY, train)
