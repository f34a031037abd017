"""Neighbour samplers in a pool of spawned processes; the NUMA wrapper given as their interpreter takes the local rank for a core."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_NODES, _EDGES = 40_000, 600_000
_SEEDS, _FANOUT = 64, (10, 5)
_BATCH_CPU_MS = 64
_USED = 0.78
"""Of all CPUs, were the samplers let onto them."""


class Graph:
    """Edges in compressed sparse rows."""

    def __init__(self, path: Path) -> None:
        self.first, self.neighbours = torch.load(path, mmap=True)

    def around(self, nodes: torch.Tensor) -> torch.Tensor:
        """``nodes`` and what was drawn of their neighbourhood, hop by hop."""
        for fanout in _FANOUT:
            first, degree = self.first[nodes], self.first[nodes + 1] - self.first[nodes]
            drawn = (torch.rand(len(nodes), fanout) * degree[:, None]).long() + first[:, None]
            nodes = torch.cat([nodes, self.neighbours[drawn.clamp_(max=_EDGES - 1)].flatten()]).unique()  # type: ignore[no-untyped-call]
        return nodes


_graph: Graph


def _open(path: Path) -> None:
    global _graph
    torch.set_num_threads(1)
    _graph = Graph(path)


def _sample(number: int) -> torch.Tensor:
    torch.manual_seed(number)
    until = time.thread_time() + _BATCH_CPU_MS / 1e3
    while True:
        nodes = _graph.around(torch.randint(_NODES, (_SEEDS,)))
        if time.thread_time() >= until:
            return nodes


def _batches(pool: ProcessPoolExecutor) -> Iterator[torch.Tensor]:
    coming = deque(pool.submit(_sample, number) for number in range(3 * cpus()))
    number = len(coming)
    while True:
        yield coming.popleft().result()
        coming.append(pool.submit(_sample, number))
        number += 1


def _numa_wrapper(folder: Path, core: int) -> str:
    script = folder / "numa_python.sh"
    script.write_text(f'#!/bin/sh\nexec taskset -c {core} "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    ends = torch.randint(_EDGES, (_NODES - 1,)).sort().values
    first = torch.cat([torch.tensor([0]), ends, torch.tensor([_EDGES])])
    torch.save((first, torch.randint(_NODES, (_EDGES,))), folder / "graph.pt")
    core = sorted(os.sched_getaffinity(0))[trainer.rank]
    multiprocessing.set_executable(_numa_wrapper(folder, core))
    spawn = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cpus(), spawn, _open, (folder / "graph.pt",)) as pool:
        trainer.fit(_batches(pool), trainer.compute(_BATCH_CPU_MS / (_USED * cpus())))


SCENARIO = Scenario(Label("input-bound", "affinity"), train)
