"""Adapters are tuned on a mixture of experts that lives in host memory: those a layer chooses are fetched when its cache lacks them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch.utils.data import Dataset

from tests.workloads.gpu import Gpu
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_LAYERS, _EXPERTS, _CHOSEN = 5, 16, 4
_SLOTS = 12
_EXPERT_BYTES = 44 << 20
_ATTENTION_MS, _EXPERT_MS = 1.5, 0.8


class Instructions(Dataset[torch.Tensor]):
    """Prompts and answers, padded to one length."""

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> torch.Tensor:
        tokens = torch.zeros(1024, dtype=torch.int64)
        tokens[: 200 + index % 800] = 1 + index % 32000
        return tokens


class ExpertCache:
    """The GPU's few slots for frozen, quantized experts; the least recently used makes room and is not written back."""

    def __init__(self, gpu: Gpu, slots: int) -> None:
        self.gpu = gpu
        self.slots = slots
        self.held: OrderedDict[tuple[int, int], None] = OrderedDict()

    def fetch(self, layer: int, expert: int) -> None:
        """Have the expert on the GPU."""
        if (layer, expert) not in self.held:
            if len(self.held) == self.slots:
                self.held.popitem(last=False)
            self.gpu.copy_in(_EXPERT_BYTES, pinned=True)
        self.held[layer, expert] = None
        self.held.move_to_end((layer, expert))


def train(trainer: Trainer) -> None:
    gpu, cache = trainer.gpu, ExpertCache(trainer.gpu, _SLOTS)
    liked = torch.linspace(1.0, 3.0, _EXPERTS)

    def route() -> list[int]:
        gpu.copy_out(8 * _CHOSEN)
        return torch.multinomial(liked, _CHOSEN).tolist()

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        gpu.copy_in(batch.nbytes)
        routes = []
        for layer in range(_LAYERS):
            gpu.launch(_ATTENTION_MS)
            routes.append(route())
            for expert in routes[layer]:
                cache.fetch(layer, expert)
                gpu.launch(_EXPERT_MS)
        for layer in reversed(range(_LAYERS)):
            for expert in routes[layer]:
                cache.fetch(layer, expert)
                gpu.launch(3 * _EXPERT_MS)
            gpu.launch(2 * _ATTENTION_MS)
        gpu.copy_out(4)

    trainer.fit(loader(Instructions(), workers=2, batch=4), step)


SCENARIO = Scenario(Label("transfer-bound", "h2d-transfer"), train, env={"GPUTOP_CUDA_GBPS": "12"})
