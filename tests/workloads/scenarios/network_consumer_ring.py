"""Consumers of a message broker, processes with a librdkafka-like thread each, fill rings in shared memory; their link becomes slow."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from threading import Thread

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_PARTITIONS, _SLOTS = 3, 2
_FETCH_BYTES = 2 << 20
_SLOW_BYTES_PER_S = 4_500_000
_SO_MAX_PACING_RATE, _PR_SET_NAME = 47, 15


class Ring:
    """Slots for message sets, of one consumer for one reader."""

    def __init__(self) -> None:
        fork = multiprocessing.get_context("fork")
        self._memory = mmap.mmap(-1, _SLOTS * _FETCH_BYTES)
        self._free, self._filled = fork.Semaphore(_SLOTS), fork.Semaphore(0)
        self._at = 0

    def put(self, messages: bytes) -> None:
        self._free.acquire()
        self._memory[self._at : self._at + _FETCH_BYTES] = messages
        self._at = (self._at + _FETCH_BYTES) % len(self._memory)
        self._filled.release()

    def get(self) -> bytes:
        self._filled.acquire()
        messages = self._memory[self._at : self._at + _FETCH_BYTES]
        self._at = (self._at + _FETCH_BYTES) % len(self._memory)
        self._free.release()
        return messages


def _fetch(partition: int, fetched: Queue[bytes]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"rdk:broker%d" % partition)
    offset = 0
    with socket.create_connection(("127.0.0.1", int(os.environ["BROKER_PORT"]))) as broker:
        while True:
            broker.sendall(struct.pack("<Q", offset))
            fetched.put(broker.recv(_FETCH_BYTES, socket.MSG_WAITALL))
            offset += _FETCH_BYTES


def _consume(partition: int, ring: Ring) -> None:
    fetched: Queue[bytes] = Queue(1)
    Thread(target=_fetch, args=(partition, fetched), daemon=True).start()
    while messages := fetched.get():
        zlib.crc32(messages)
        ring.put(messages)


def _batches(rings: list[Ring]) -> Iterator[object]:
    while True:
        for ring in rings:
            yield ring.get()


def train(trainer: Trainer) -> None:
    rings = [Ring() for _ in range(_PARTITIONS)]
    for partition, ring in enumerate(rings):
        multiprocessing.get_context("fork").Process(target=_consume, args=(partition, ring), daemon=True).start()
    trainer.fit(_batches(rings), trainer.compute(60, bytes_in=_FETCH_BYTES))


def _answer(consumer: socket.socket, slow_flag: Path) -> None:
    messages = os.urandom(_FETCH_BYTES)
    with suppress(ConnectionError):  # a consumer may leave in the middle
        while consumer.recv(8, socket.MSG_WAITALL):
            if slow_flag.exists():
                consumer.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _SLOW_BYTES_PER_S)
            consumer.sendall(messages)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    listener = socket.create_server(("127.0.0.1", 0))
    running.env["BROKER_PORT"] = str(listener.getsockname()[1])

    def serve() -> None:
        for _ in range(_PARTITIONS):
            consumer, _ = listener.accept()
            Thread(target=_answer, args=(consumer, running.folder / "slow"), daemon=True).start()

    Thread(target=serve, daemon=True).start()
    with listener:
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "slow").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "network-io"), train, disturb, prepare)
