"""Near-duplicates are looked for while training: each document's MinHash is computed in plain Python before it may be in a batch.

As many spawned processes as there are CPUs do that, each at the end of a pipe of its own; the trainer takes from whichever has
something. All of them compute all the time and hold all CPUs, nobody else wants one, and the GPU gets a third of the batches that
it could take: the transform is too dear for this machine, and has to be done once, ahead, or in faster code.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_DOCUMENT = "we describe a system that finds almost equal documents in a large crawl and keeps one of each " * 4
_PERMUTATIONS = [(2 * i + 1, 7919 * i) for i in range(16)]
_CPU_MS_EACH, _GPU_MS = 55, 20


def _signature(words: list[str]) -> list[int]:
    shingles = {zlib.crc32(" ".join(words[i : i + 5]).encode()) for i in range(len(words) - 4)}
    return [min((a * shingle + b) & 0xFFFFFFFF for shingle in shingles) for a, b in _PERMUTATIONS]


def filter_documents(out: Connection, cpu_ms: float) -> None:
    """Batch after batch of documents that are unlike what was seen before."""
    words, seen = _DOCUMENT.split(), set()
    while True:
        until = time.thread_time() + cpu_ms / 1e3
        while time.thread_time() < until:
            words.append(words.pop(0))
            seen.add(tuple(_signature(words)))
        out.send_bytes(" ".join(words).encode() * 64)


def _batches(pipes: list[Connection]) -> Iterator[bytes]:
    while True:
        for pipe in wait(pipes):
            assert isinstance(pipe, Connection)
            yield pipe.recv_bytes()


def train(trainer: Trainer) -> None:
    spawn, pipes = get_context("spawn"), []
    for _ in range(cpus()):
        end, out = spawn.Pipe(duplex=False)
        spawn.Process(target=filter_documents, args=(out, _CPU_MS_EACH * cpus()), daemon=True).start()
        pipes.append(end)
    trainer.fit(_batches(pipes), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
