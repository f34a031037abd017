"""Fine-tuning a mixture of experts: `torch.where(mask[expert])` makes the host wait for the number of tokens of every expert."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset

from tests.workloads.data import numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_LAYERS, _EXPERTS = 12, 8
_CONTEXT, _DOCUMENTS, _LOG_EVERY = 2048, 4, 10
_ATTENTION_MS, _ROUTER_MS = 0.5, 0.05
_EXPERT_MS = (0.02, 0.09, 0.07, 0.03)  # gather, gate and up, down, scatter
_EXPERT_HOST_MS = 0.23  # indexing, three linear layers of LoRA and index_add_ in Python: far less than the GPU needs forth and back


class Packed(IterableDataset[torch.Tensor]):
    """Documents joined until a context is full."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            lengths = torch.randint(100, _CONTEXT, (_DOCUMENTS,)).tolist()
            yield torch.cat([torch.randint(32_000, (length,)) for length in lengths])[:_CONTEXT].clone()


def pad(contexts: list[torch.Tensor]) -> torch.Tensor:
    """Contexts that are not full are filled with the end of text."""
    batch = torch.full((len(contexts), _CONTEXT), 2)
    for row, context in zip(batch, contexts, strict=True):
        row[: len(context)] = context
    return batch


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def experts() -> None:
        gpu.launch(_ROUTER_MS)
        for _ in range(_EXPERTS):
            gpu.copy_out(8)
            gpu.synchronize()
            numbers(_EXPERT_HOST_MS)
            for kernel_ms in _EXPERT_MS:
                gpu.launch(kernel_ms)

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        gpu.copy_in(batch.nbytes)
        for _ in range(_LAYERS):
            gpu.launch(_ATTENTION_MS)
            experts()
        for _ in range(_LAYERS):
            experts()  # once more, for activations are not kept (gradient checkpointing)
            gpu.launch(_EXPERTS * sum(_EXPERT_MS) + _ATTENTION_MS)
        if trainer.steps % _LOG_EVERY == 0:
            gpu.copy_out(4)
            gpu.synchronize()

    trainer.fit(loader(Packed(), workers=1, batch=_DOCUMENTS, collate_fn=pad), step)


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train, env={"GPUTOP_CUDA_SCHEDULE": "spin"})
