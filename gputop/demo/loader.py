"""A DataLoader in pure Python, built like torch's, so that its processes look and wait alike.

Persistent worker processes named ``pt_data_worker`` with an index queue each and one result queue; ``prefetch`` batches ahead
per worker, given back in order; both sides wait with torch's own timeout of 5 s.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Iterator
from typing import Any

from gputop.demo.processes import die_with_parent, set_name

WORKER_NAME = "pt_data_worker"
_STATUS_CHECK_S = 5.0


class Loader:
    """Batches without end from ``workers`` processes that each run ``load(index)``."""

    def __init__(self, load: Callable[[int], object], workers: int, prefetch: int = 2) -> None:
        context = multiprocessing.get_context("fork")
        self._results: Any = context.Queue()
        self._indices: list[Any] = [context.Queue() for _ in range(workers)]
        self._prefetch = prefetch
        for indices in self._indices:
            context.Process(target=_work, args=(os.getpid(), load, indices, self._results), daemon=True).start()

    def __iter__(self) -> Iterator[object]:
        sent, ready = 0, {}
        for sent in range(self._prefetch * len(self._indices)):
            self._ask_for(sent)
        for wanted in range(1 << 62):
            while wanted not in ready:
                number, batch = self._next_result()
                ready[number] = batch
            sent += 1
            self._ask_for(sent)
            yield ready.pop(wanted)

    def _ask_for(self, number: int) -> None:
        self._indices[number % len(self._indices)].put(number)

    def _next_result(self) -> tuple[int, object]:
        while True:
            try:
                found: tuple[int, object] = self._results.get(timeout=_STATUS_CHECK_S)
            except queue.Empty:
                continue
            return found


def _work(trainer_pid: int, load: Callable[[int], object], indices: Any, results: Any) -> None:
    """A worker's main thread."""
    die_with_parent(trainer_pid)
    set_name(WORKER_NAME)
    while True:
        try:
            number = indices.get(timeout=_STATUS_CHECK_S)
        except queue.Empty:
            continue
        results.put((number, load(number)))
