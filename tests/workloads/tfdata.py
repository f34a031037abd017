"""A pipeline as tf.data runs it: threads of the trainer read records, map them in C and without the GIL, batch and prefetch."""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

from tests.workloads.runner import Running

_RECORDS, _RAW_BYTES = 64, 256 << 10
_BATCH, _PREFETCH = 8, 4


@contextmanager
def records(running: Running) -> Iterator[None]:
    """`train.tfrecord` in the workload's folder: compressed records, each after its length."""
    with (running.folder / "train.tfrecord").open("wb") as out:
        for _ in range(_RECORDS):
            record = zlib.compress(os.urandom(_RAW_BYTES // 16) + bytes(range(256)) * (_RAW_BYTES * 15 // 16 // 256), 1)
            out.write(struct.pack("<I", len(record)) + record)
    yield


def batches(threads: int, cpu_ms: float) -> Iterator[object]:
    """`TFRecordDataset(…).repeat().map(inflate, threads).batch(8).prefetch(4)`, where a record takes ``cpu_ms`` of a CPU."""
    path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "train.tfrecord"
    packed: Queue[bytes] = Queue(4 * threads)
    mapped: Queue[bytes] = Queue(2 * threads)
    ready: Queue[list[bytes]] = Queue(_PREFETCH)

    def read() -> None:
        while True:
            for record in _read(path):
                packed.put(record)

    def transform() -> None:
        while True:
            mapped.put(_inflate(packed.get(), cpu_ms))

    def batch() -> None:
        while True:
            ready.put([mapped.get() for _ in range(_BATCH)])

    for work in [read, *[transform] * threads, batch]:
        Thread(target=work, daemon=True).start()
    return iter(ready.get, None)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while head := file.read(4):
            yield file.read(struct.unpack("<I", head)[0])


def _inflate(record: bytes, cpu_ms: float) -> bytes:
    until = time.thread_time() + cpu_ms / 1e3
    while True:
        raw = zlib.decompress(record, bufsize=_RAW_BYTES)
        zlib.crc32(raw)
        if time.thread_time() >= until:
            return raw
