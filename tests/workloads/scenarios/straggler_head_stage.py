"""A pipeline over gloo, its layers split evenly: the last stage has the head of 256 000 words besides, and the others wait for it."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_STAGES = 3
_LAYERS, _LAYER_MS, _HEAD_MS = (4, 4, 4), 3.0, 24.0
_HIDDEN = (2, 512, 1024)


class Tokens(IterableDataset[torch.Tensor]):
    """Documents cut to one length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randint(256_000, (513,))


class Peer:
    """A neighbouring stage: tensors to it and from it, through host memory, the next one always asked for already."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._sent: deque[tuple[dist.Work | None, torch.Tensor]] = deque(maxlen=8)
        self._expect()

    def _expect(self) -> None:
        self._received = torch.empty(_HIDDEN, dtype=torch.bfloat16)
        self._receiving = dist.irecv(self._received, self._rank)

    def receive(self) -> torch.Tensor:
        """The next tensor from it."""
        assert self._receiving is not None
        self._receiving.wait()
        received = self._received
        self._expect()
        return received

    def send(self, tensor: torch.Tensor) -> None:
        """Returns at once."""
        self._sent.append((dist.isend(tensor, self._rank), tensor))


class Stage:
    """Activations come from the stage before it, gradients from the one after it."""

    def __init__(self, trainer: Trainer) -> None:
        self._gpu, self._seen, last = trainer.gpu, 0, _STAGES - 1
        self._before = Peer(trainer.rank - 1) if trainer.rank > 0 else None
        self._after = Peer(trainer.rank + 1) if trainer.rank < last else None
        self._forward_ms = _LAYERS[trainer.rank] * _LAYER_MS + (_HEAD_MS if trainer.rank == last else 0.0)
        self._in_flight = 2 * (last - trainer.rank)

    def step(self, _batch: object) -> None:
        """The next microbatch forward, then an earlier one backward."""
        self._run(self._forward_ms, self._before, self._after)
        self._seen += 1
        if self._seen > self._in_flight:
            self._run(2 * self._forward_ms, self._after, self._before)

    def _run(self, length_ms: float, source: Peer | None, target: Peer | None) -> None:
        if source:
            self._gpu.copy_in(source.receive().nbytes, pinned=True)
        for _ in range(4):
            self._gpu.launch(length_ms / 4)
        if target:
            hidden = torch.empty(_HIDDEN, dtype=torch.bfloat16)
            self._gpu.copy_out(hidden.nbytes)
            target.send(hidden)


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    group = f"file://{os.environ['GPUTOP_WORKLOAD_FOLDER']}/group"
    dist.init_process_group("gloo", init_method=group, rank=trainer.rank, world_size=_STAGES)
    middle = 0 < trainer.rank < _STAGES - 1
    trainer.fit(itertools.repeat(None) if middle else loader(Tokens(), workers=1, batch=2), Stage(trainer).step)


SCENARIO = Scenario(
    Label("straggler", "straggler-rank"), train, ranks=_STAGES, devices=_STAGES, env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
)
