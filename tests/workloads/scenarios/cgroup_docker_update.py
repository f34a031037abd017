"""A container is cut to a quarter of a CPU while it trains, as `docker update --cpus 0.25` does.

A `ProcessPoolExecutor` splits text into tokens six batches ahead and needs two thirds of a CPU for that. The host's CPUs are idle
most of the time, before and after. From the onset on the quota stops the pool, and now and then the trainer, for most of each
period: nothing but the quota has changed, so the quota is the cause.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context
from pathlib import Path

from tests.workloads import cgroup
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_TEXT = "The quick brown fox doesn't jump over 13 lazy dogs; it walks around them, twice. " * 20
_PIECES = re.compile(r"'\w+| ?[A-Za-z]+| ?\d+|[^\w\s]+|\s+")
_AHEAD, _CPU_MS, _QUOTA_CPUS = 6, 20, 0.25


def _tokenize(number: int) -> list[int]:
    until, vocabulary, ids = time.thread_time() + _CPU_MS / 1e3, {}, [number]  # type: ignore[var-annotated]
    while time.thread_time() < until:
        ids = [vocabulary.setdefault(piece, len(vocabulary)) for piece in _PIECES.findall(_TEXT)]
    return ids


def _batches(pool: ProcessPoolExecutor) -> Iterator[list[int]]:
    coming: deque[Future[list[int]]] = deque(pool.submit(_tokenize, number) for number in range(_AHEAD))
    number = _AHEAD
    while True:
        yield coming.popleft().result()
        coming.append(pool.submit(_tokenize, number))
        number += 1


def train(trainer: Trainer) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        trainer.fit(_batches(pool), trainer.compute(30))


@contextmanager
def container(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as path:
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(path)
        yield


def update(running: Running) -> AbstractContextManager[None]:
    return cgroup.limited_cpu(Path(running.env["GPUTOP_WORKLOAD_CGROUP"]), _QUOTA_CPUS)


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, update, container, needs=lambda: cgroup.missing("cpu"))
