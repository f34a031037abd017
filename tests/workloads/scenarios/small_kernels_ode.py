"""A neural ODE: a tiny network, solved in many small steps forward and, on autograd's thread, back again; there is no loader at all."""

from __future__ import annotations

import ctypes
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch

from tests.workloads.loop import Over, Trainer
from tests.workloads.scenario import Label, Scenario

_PATHS, _TIMES, _BATCH = 4000, 100, 64
_SHORTEST, _LONGEST = 25, 60
_STAGES, _LAYERS = 4, 3
_MULTIPLY, _ACTIVATE, _COMBINE = (0.008, 4), (0.006, 2), (0.005, 1)  # milliseconds, SMs
_PR_SET_NAME = 15


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    gpu, paths = trainer.gpu, torch.randn(_PATHS, _TIMES, 2)

    def network(passes: int) -> None:
        for _ in range(_LAYERS * passes):
            gpu.launch(*_MULTIPLY)
            gpu.launch(*_ACTIVATE)

    def solve(steps: int, passes: int) -> None:
        """Runge and Kutta's steps, each of four stages that ask the network; ``passes`` is 1 forward, 2 backward."""
        for _ in range(steps):
            for _ in range(_STAGES):
                network(passes)
                gpu.launch(*_COMBINE)
            gpu.launch(*_COMBINE)

    def step() -> None:
        steps = random.randint(_SHORTEST, _LONGEST)
        batch = paths[torch.randint(_PATHS, (_BATCH,)), :steps]
        gpu.copy_in(batch.nbytes)
        solve(steps, passes=1)
        autograd.submit(solve, steps, passes=2).result()
        for _ in range(12):  # the optimizer
            gpu.launch(*_COMBINE)
        gpu.synchronize()
        trainer.tick()

    with ThreadPoolExecutor(1, initializer=_name) as autograd, suppress(Over):
        while True:
            step()


def _name() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"pt_autograd_0")


SCENARIO = Scenario(Label("busy-not-working", "small-kernels"), train)
