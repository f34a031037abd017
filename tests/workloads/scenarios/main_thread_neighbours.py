"""A graph network: workers hand out seed nodes, and the training loop itself samples their neighbours and gathers the features."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_NODES, _DEGREE, _FEATURES = 200_000, 16, 64
_SEEDS, _FANOUTS = 256, (25, 10)


class Seeds(Dataset[torch.Tensor]):
    """Shuffled node ids, some at a time."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(_NODES, (_SEEDS,), generator=torch.Generator().manual_seed(index))


class Graph:
    """Compressed sparse rows in memory, with a feature vector and a degree for each node."""

    def __init__(self) -> None:
        degrees = torch.randint(1, 2 * _DEGREE, (_NODES,))
        self.first = torch.cat([torch.zeros(1, dtype=torch.long), degrees.cumsum(0)])
        self.neighbours = torch.randint(_NODES, (int(self.first[-1]),))
        self.features = torch.randn(_NODES, _FEATURES)

    def sample(self, seeds: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The features of all nodes a two-layer GraphSAGE needs for ``seeds``, and its bipartite edges."""
        nodes, blocks = torch.unique(seeds), []
        for fanout in _FANOUTS:
            start, end = self.first[nodes], self.first[nodes + 1]
            chosen = start[:, None] + (torch.rand(len(nodes), fanout) * (end - start)[:, None]).long()
            sources = self.neighbours[chosen].flatten()
            nodes, places = torch.unique(torch.cat([nodes, sources]), return_inverse=True)
            blocks.append(places[-len(sources) :].view(-1, fanout))
        rows = self.features[nodes]
        return torch.nn.functional.normalize(rows), blocks


def train(trainer: Trainer) -> None:
    graph, compute = Graph(), trainer.compute(45)

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        compute(graph.sample(batch.flatten()))

    trainer.fit(loader(Seeds(), workers=2, batch=4), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train, env={"OMP_NUM_THREADS": "1"})
