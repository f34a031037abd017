"""Documents are parsed and tokenized by a `ThreadPoolExecutor` of six threads in the trainer itself, eight batches ahead.

`json.loads`, the regular expression and the vocabulary's lookups are Python and hold the interpreter's lock, so six threads do the work of
one: they use one CPU together, the other idles, and a batch takes 40 ms where the GPU needs 14. More threads would change nothing and
processes would halve it: the GIL is what they all wait for.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_THREADS = 6
_AHEAD = 8
_BATCH_CPU_MS = 40
_WORD = re.compile(r"\w+|[^\w\s]")
_LINE = json.dumps({"url": "https://example.org/a", "text": "The quick brown fox, it is said, jumps over 13 lazy dogs. " * 6})


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(14))


def _batches() -> Iterator[list[int]]:
    with ThreadPoolExecutor(_THREADS) as threads:
        coming = deque(threads.submit(_batch) for _ in range(_AHEAD))
        while True:
            yield coming.popleft().result()
            coming.append(threads.submit(_batch))


def _batch() -> list[int]:
    """As many documents as take a batch's CPU time, on any machine."""
    tokens: list[int] = []
    until = time.thread_time() + _BATCH_CPU_MS / 1e3
    while time.thread_time() < until:
        words = _WORD.findall(json.loads(_LINE)["text"].lower())
        ranks = {word: rank for rank, (word, _) in enumerate(Counter(words).most_common())}
        tokens.extend(ranks[word] for word in words)
    return tokens


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train)
