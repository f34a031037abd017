"""Three ranks accumulate gradients over four micro-batches (`no_sync`) and reduce once; the long documents are all in the last one's shard.

Documents were sorted by length before they were cut into shards, so that the last rank's micro-batches take its GPU 17 ms and the others'
six. The other two wait in the all-reduce for more than half of each step. The first rank also writes a line of metrics for each step, which
costs next to nothing. The last rank is the straggler.
"""

from __future__ import annotations

import json
import mmap
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

from tests.workloads import collective
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_RANKS, _LONG = 3, 2
_MICRO_BATCHES = 4
_SHARD_BYTES = 8 << 20


def train(trainer: Trainer) -> None:
    gpu, rank, group = trainer.gpu, trainer.rank, collective.Group(trainer.gpu, trainer.rank)
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    length_ms, tokens = (17, 8192) if rank == _LONG else (6, 2048)
    with (folder / f"metrics-{rank}.jsonl").open("w") as metrics:

        def step(micro_batch: object) -> None:
            gpu.copy_in(4 * len(micro_batch), pinned=True)  # type: ignore[arg-type]
            gpu.launch(length_ms)
            if trainer.steps % _MICRO_BATCHES == _MICRO_BATCHES - 1:
                group.all_reduce(1.0)
                gpu.synchronize()
                if rank == 0:
                    metrics.write(json.dumps({"step": trainer.steps // _MICRO_BATCHES, "loss": 2.1}) + "\n")

        trainer.fit(_micro_batches(folder / f"shard-{rank}.bin", tokens), step)


def _micro_batches(path: Path, tokens: int) -> Iterator[array[int]]:
    """Slices of a shard of tokens of two bytes, mapped."""
    path.write_bytes(bytes(_SHARD_BYTES))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as shard:
        while True:
            for at in range(0, _SHARD_BYTES - 2 * tokens, 2 * tokens):
                yield array("H", shard[at : at + 2 * tokens])


SCENARIO = Scenario(Label("straggler", "straggler-rank"), train, prepare=collective.prepare, ranks=_RANKS, devices=_RANKS)
