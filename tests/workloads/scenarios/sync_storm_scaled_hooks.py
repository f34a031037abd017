"""The optimizer steps inside backward, one per weight, and the loss scaler asks each whether its gradient overflowed."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import nn
from torch.utils.data import Dataset

from tests.workloads.gpu import Gpu
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_WEIGHTS = 72
_FORWARD_MS, _GRADIENT_MS, _UNSCALE_MS, _UPDATE_MS = 0.07, 0.17, 0.03, 0.03
_PR_SET_NAME = 15


class Passages(Dataset[torch.Tensor]):
    """Windows of a tokenized text held in memory."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, 32000, (1 << 20,), dtype=torch.int32)

    def __len__(self) -> int:
        return len(self.tokens) // 512

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tokens[index * 512 : (index + 1) * 512].long()


class Scaler(torch.amp.GradScaler):
    """A GradScaler whose `found_inf` lies on the GPU: to skip a step or not is for the host to say."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__("cpu", init_scale=1024.0)
        self.gpu = gpu

    def step(self, optimizer: torch.optim.Optimizer, *args: object, **more: object) -> float | None:
        self.gpu.launch(_UNSCALE_MS)
        self.gpu.copy_out(4)
        self.gpu.synchronize()
        self.gpu.launch(_UPDATE_MS)
        return super().step(optimizer, *args, **more)


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    gpu, scaler = trainer.gpu, Scaler(trainer.gpu)
    weights = [nn.Parameter(torch.ones(8)) for _ in range(_WEIGHTS)]
    optimizers = {weight: torch.optim.SGD([weight], lr=1e-4) for weight in weights}

    def stepped(weight: torch.Tensor) -> None:
        gpu.launch(_GRADIENT_MS)
        scaler.step(optimizers[weight])  # type: ignore[index]
        weight.grad = None

    for weight in weights:
        weight.register_post_accumulate_grad_hook(stepped)  # type: ignore[no-untyped-call]
    # On a GPU torch runs the backward pass, hooks and all, in the device's own thread.
    engine = ThreadPoolExecutor(1, initializer=partial(ctypes.CDLL(None).prctl, _PR_SET_NAME, b"pt_autograd_0"))

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        gpu.copy_in(batch.nbytes)
        hidden = torch.ones(8)
        for weight in weights:
            gpu.launch(_FORWARD_MS)
            hidden = hidden * weight
        engine.submit(scaler.scale(hidden.mean()).backward).result()
        scaler.update()

    trainer.fit(loader(Passages(), workers=2), step)


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train)
