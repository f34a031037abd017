"""Batches come through a ring in /dev/shm that a trainer and its own spawned producers map: no queue, no lock, no torch loader.

A slot's first byte says whether it is full. Producers poll theirs every millisecond, the trainer polls the next one: thousands of
short sleeps a second, processes that never block on anything that names the one they wait for. The producers need less than
half of the machine and the ring is full nearly always, so the GPU is busy. Nothing is wrong.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_PRODUCERS, _SLOTS, _BATCH = 2, 6, 8
_IMAGE_BYTES = 3 * 48 * 48
_SLOT_BYTES = 1 + _BATCH * _IMAGE_BYTES
_EMPTY, _FULL = 0, 1


def _ring() -> mmap.mmap:
    with open(os.environ["GPUTOP_WORKLOAD_RING"], "r+b") as file:
        return mmap.mmap(file.fileno(), _SLOTS * _SLOT_BYTES)


def _wait(ring: mmap.mmap, slot: int, state: int) -> None:
    while ring[slot * _SLOT_BYTES] != state:
        time.sleep(0.001)


def _bytes(image: torch.Tensor) -> bytes:
    pixels = image.to(torch.uint8)
    return ctypes.string_at(pixels.data_ptr(), _IMAGE_BYTES)


def _produce(first: int) -> None:
    ring = _ring()
    while True:
        for slot in range(first, _SLOTS, _PRODUCERS):
            images = b"".join(_bytes(decode(0.7)) for _ in range(_BATCH))
            _wait(ring, slot, _EMPTY)
            ring[slot * _SLOT_BYTES + 1 : (slot + 1) * _SLOT_BYTES] = images
            ring[slot * _SLOT_BYTES] = _FULL


def _batches() -> Iterator[bytes]:
    spawn, ring = multiprocessing.get_context("spawn"), _ring()
    for first in range(_PRODUCERS):
        spawn.Process(target=_produce, args=(first,), daemon=True).start()
    while True:
        for slot in range(_SLOTS):
            _wait(ring, slot, _FULL)
            yield ring[slot * _SLOT_BYTES + 1 : (slot + 1) * _SLOT_BYTES]
            ring[slot * _SLOT_BYTES] = _EMPTY


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(24))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(prefix="ring-", dir="/dev/shm") as file:
        file.truncate(_SLOTS * _SLOT_BYTES)
        running.env["GPUTOP_WORKLOAD_RING"] = file.name
        yield


SCENARIO = Scenario(HEALTHY, train, prepare=prepare)
