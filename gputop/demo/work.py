"""What the demo's processes do: name themselves, die with their parent, use CPU time, load batches.

`Loader` is a DataLoader in pure Python, built like torch's, so that its processes look and wait alike: persistent workers named
``pt_data_worker`` with an index queue each and one result queue, ``prefetch`` batches ahead per worker, given back in order.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

WORKER_NAME = "pt_data_worker"  # as torch names its workers
STATUS_CHECK_S = 5.0  # s that both sides wait for a queue (torch: MP_STATUS_CHECK_INTERVAL)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # prctl(2)
_PACKED = zlib.compress(bytes(range(256)) * 64, 1)


def set_name(name: str) -> None:
    """Give the calling thread a name of up to 15 bytes, as torch does with its workers."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send signal ``number`` to this process when its parent ends; send it at once where the parent has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def decode_image(cpu_ms: float) -> None:
    """Unpack and normalize an image until ``cpu_ms`` of this thread's CPU time are used, however long that takes by the clock."""
    until = time.thread_time() + cpu_ms / 1e3
    while time.thread_time() < until:
        pixels = zlib.decompress(_PACKED)
        bytes(pixel ^ 0x55 for pixel in pixels[:512])


def hog(name: str, parent_pid: int, threads: int, seconds: float) -> None:
    """Be a process called ``name`` that compresses log lines on ``threads`` threads (zlib works outside the GIL) for ``seconds``."""
    die_with_parent(parent_pid)
    set_name(name)
    for _ in range(threads - 1):
        Thread(target=_compress, args=(seconds,), daemon=True).start()
    _compress(seconds)


def _compress(seconds: float) -> None:
    lines, end = os.urandom(1 << 16), time.monotonic() + seconds
    while time.monotonic() < end:
        zlib.compress(lines, 6)


class Loader:
    """Batches without end from ``workers`` processes that each run ``load(index)``."""

    def __init__(self, load: Callable[[int], object], workers: int, prefetch: int = 2) -> None:
        context = multiprocessing.get_context("fork")
        self._results: Any = context.Queue()
        self._indices: list[Any] = [context.Queue() for _ in range(workers)]
        self._prefetch = prefetch
        for indices in self._indices:
            context.Process(target=_load_batches, args=(os.getpid(), load, indices, self._results), daemon=True).start()

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
                found: tuple[int, object] = self._results.get(timeout=STATUS_CHECK_S)
            except queue.Empty:
                continue
            return found


def _load_batches(trainer_pid: int, load: Callable[[int], object], indices: Any, results: Any) -> None:
    """The main thread of a worker."""
    die_with_parent(trainer_pid)
    set_name(WORKER_NAME)
    while True:
        try:
            number = indices.get(timeout=STATUS_CHECK_S)
        except queue.Empty:
            continue
        results.put((number, load(number)))
