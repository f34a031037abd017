"""The corpus is one stream of `xz`: a thread feeds the program, the trainer reads text from its standard output.

One decompressor with one thread computes without a pause while the other CPUs idle, and the trainer is always there before it. What
it gives is worth no complaint, there is just one of it: several shards, each with a decompressor, would feed the GPU. So there are
too few workers.
"""

from __future__ import annotations

import lzma
import random
import shutil
import subprocess
from collections.abc import Iterator
from threading import Thread
from typing import IO

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_BATCH_BYTES, _SHARD_BYTES, _GPU_MS = 3 << 20, 4 << 20, 20


def _shard() -> bytes:
    words = ["".join(random.Random(seed).choices("etaoinshrdlu", k=2 + seed % 9)) for seed in range(4000)]
    text = " ".join(random.Random(1).choices(words, k=_SHARD_BYTES // 7))
    return lzma.compress(text.encode(), preset=0)


def _feed(pipe: IO[bytes], shard: bytes) -> None:
    while True:
        pipe.write(shard)


def _batches(pipe: IO[bytes]) -> Iterator[bytes]:
    while batch := pipe.read(_BATCH_BYTES):
        yield batch


def train(trainer: Trainer) -> None:
    xz = subprocess.Popen(["xz", "--decompress", "--stdout", "--threads=1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert xz.stdin is not None
    assert xz.stdout is not None
    Thread(target=_feed, args=(xz.stdin, _shard()), daemon=True).start()
    trainer.fit(_batches(xz.stdout), trainer.compute(_GPU_MS))


def missing() -> str:
    return "no xz" if not shutil.which("xz") else "" if cpus() > 1 else "one CPU is all there is"


SCENARIO = Scenario(Label("input-bound", "too-few-workers"), train, needs=missing)
