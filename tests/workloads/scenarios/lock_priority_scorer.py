"""Hard examples are drawn by weights which a scoring process of the job renews, and all the while it holds the lock that guards them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.synchronize import Lock

import torch
from torch.utils.data import IterableDataset

from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_EXAMPLES, _BATCH = 60_000, 32
_SLICE, _FEATURES = 500, 256
_RENEW_S, _REST_S = 1.9, 0.05


class HardExamples(IterableDataset[torch.Tensor]):
    """Draws a batch's worth by the weights, then decodes it."""

    def __init__(self, weights: torch.Tensor, lock: Lock) -> None:
        self.weights, self.lock = weights, lock

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            with self.lock:
                chosen = torch.multinomial(self.weights, _BATCH)
            for _ in chosen:
                yield decode(2.5)


def score(weights: torch.Tensor, lock: Lock) -> None:
    """Slice by slice, as many as the time allows."""
    torch.set_num_threads(1)
    features, head = torch.randn(_SLICE, _FEATURES), torch.randn(_FEATURES, _FEATURES)
    at = 0
    while True:
        with lock:
            until = time.monotonic() + _RENEW_S
            while time.monotonic() < until:
                weights[at : at + _SLICE] = (features @ head).logsumexp(1).sigmoid_().add_(0.01)
                at = (at + _SLICE) % _EXAMPLES
        time.sleep(_REST_S)


def train(trainer: Trainer) -> None:
    context, weights = get_context("spawn"), torch.ones(_EXAMPLES).share_memory_()  # type: ignore[no-untyped-call]
    lock = context.Lock()
    context.Process(target=score, args=(weights, lock), daemon=True).start()
    examples = HardExamples(weights, lock)
    trainer.fit(loader(examples, workers=3, start="spawn", batch=_BATCH), trainer.compute(330, kernels=11, bytes_in=6 << 20))


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train)
