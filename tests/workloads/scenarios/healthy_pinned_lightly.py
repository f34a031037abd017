"""The whole job is bound to one CPU, and one is enough.

A launcher's wrapper sets the mask, the forked tokenizers inherit it. They need a fifth of that CPU, and keep a queue full ahead of
the trainer. A mask of one CPU looks like the usual mistake, but nobody waits for a CPU: the GPU is busy nearly always.
"""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from multiprocessing.queues import Queue

from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_TEXT = "<|user|> what is the capital of France ? <|assistant|> Paris , of course . <|end|> " * 8
_TOKENIZERS, _CPU_MS, _GPU_MS = 2, 8, 40


def _tokenize(batches: Queue[list[int]]) -> None:
    vocabulary = {word: number for number, word in enumerate(sorted(set(_TEXT.split())))}
    while True:
        until, ids = time.thread_time() + _CPU_MS / 1e3, [0]
        while time.thread_time() < until:
            ids = [vocabulary[word] for word in _TEXT.split()]
        batches.put(ids)


def train(trainer: Trainer) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    fork = get_context("fork")
    batches: Queue[list[int]] = fork.Queue(6)
    for _ in range(_TOKENIZERS):
        fork.Process(target=_tokenize, args=(batches,), daemon=True).start()
    trainer.fit(iter(batches.get, None), trainer.compute(_GPU_MS))


SCENARIO = Scenario(HEALTHY, train)
