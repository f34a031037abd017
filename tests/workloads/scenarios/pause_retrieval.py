"""Two ranks of contrastive training; after each epoch both rank every image against every caption on the CPU for recall at 1, 5 and 10."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import distributed
from torch.nn.functional import normalize

from tests.workloads.collective import Group, prepare
from tests.workloads.data import Images
from tests.workloads.loop import Over, Trainer, loader
from tests.workloads.scenario import Label, Scenario

RANKS = 2
_BATCH, _BATCHES, _STEP_MS = 8, 40, 50
_PAIRS, _WIDTH, _QUERIES = 4096, 256, 128
_EVALUATE_S = 1.8


def evaluate(trainer: Trainer) -> dict[int, float]:
    """Embeddings off the GPU, gathered from all ranks; then queries of this rank's part, as many as the time allows."""
    trainer.gpu.launch(60)
    trainer.gpu.copy_out(4 * _PAIRS * _WIDTH // RANKS)
    own = normalize(torch.randn(_PAIRS // RANKS, _WIDTH), dim=1)
    parts = [torch.empty_like(own) for _ in range(RANKS)]
    distributed.all_gather(parts, own)
    captions, hits, asked, until = torch.cat(parts), dict.fromkeys((1, 5, 10), 0), 0, time.monotonic() + _EVALUATE_S
    while time.monotonic() < until:
        rows = torch.arange(asked, asked + _QUERIES) % len(own)
        order = (own[rows] @ captions.T).argsort(dim=1, descending=True)
        place = (order == (rows + trainer.rank * len(own))[:, None]).int().argmax(dim=1)
        hits = {top: count + int((place < top).sum()) for top, count in hits.items()}
        asked += _QUERIES
    distributed.barrier()
    return {top: count / asked for top, count in hits.items()}


def train(trainer: Trainer) -> None:
    folder, gpu = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]), trainer.gpu
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=trainer.rank, world_size=RANKS)
    group, batches = Group(gpu, trainer.rank), loader(Images(cpu_ms=0.5, length=_BATCH * _BATCHES), workers=1, batch=_BATCH)

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        gpu.launch(_STEP_MS)
        group.all_reduce()
        gpu.synchronize()

    try:
        while True:
            trainer.epoch(batches, step)
            evaluate(trainer)
    except Over:
        return


SCENARIO = Scenario(
    Label("idle", "pause"),
    train,
    prepare=prepare,
    ranks=RANKS,
    devices=RANKS,
    env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
)
