"""The nightly backup packs three home directories with `xz`, each with more threads than there are CPUs, beside a training.

The trainer's forked producers write batches into socket pairs and need four fifths of the CPUs; alone they keep the GPU busy. From
the onset on three programs of somebody else compress without a pause and leave them a quarter or less: the producers want to run and
do not get a CPU, so those who hold the CPUs are the cause.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from selectors import EVENT_READ, DefaultSelector

from tests.workloads.data import numbers
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_CPU_MS_EACH, _GPU_MS, _BATCH_BYTES, _HOMES = 16, 20, 150_000, 3


def _produce(out: socket.socket) -> None:
    while True:
        numbers(_CPU_MS_EACH * cpus())
        out.sendall(bytes(_BATCH_BYTES))


def _batches() -> Iterator[bytes]:
    selector, fork = DefaultSelector(), get_context("fork")
    for _ in range(cpus()):
        ours, theirs = socket.socketpair()
        fork.Process(target=_produce, args=(theirs,), daemon=True).start()
        selector.register(ours, EVENT_READ)
    while True:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            yield key.fileobj.recv(_BATCH_BYTES, socket.MSG_WAITALL)


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(_GPU_MS))


@contextmanager
def back_up(running: Running) -> Iterator[None]:
    command = ["xz", "-1", "--stdout", f"--threads={3 * cpus()}"]
    with ExitStack() as stack:
        for _ in range(_HOMES):
            home = stack.enter_context(open("/dev/urandom", "rb"))
            packer = stack.enter_context(running.child(command, stdin=home, stdout=subprocess.DEVNULL))
            running.blame(packer.pid, "xz")
        yield
        running.account()


def missing() -> str:
    return "" if shutil.which("xz") else "no xz"


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({"xz"})), train, back_up, needs=missing)
