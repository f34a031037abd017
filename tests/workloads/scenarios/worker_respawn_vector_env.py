"""A vector of environments is closed after each iteration and made anew for the next one, with `spawn`.

Its two processes have little to do, and step while the GPU computes. But each is a fresh interpreter which imports everything again
before its first observation, for longer than the forty updates of an iteration take. Were the processes kept, the GPU would never
wait: starting them again and again is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

from tests.workloads.data import numbers
from tests.workloads.loop import Over, Trainer
from tests.workloads.scenario import Label, Scenario

_ENVIRONMENTS, _STEPS, _CPU_MS, _GPU_MS = 2, 40, 5, 25


def simulate(pipe: Connection) -> None:
    """Answer each action with an observation, until there is none."""
    while pipe.recv() is not None:
        pipe.send([numbers(_CPU_MS)] * 64)


@contextmanager
def _vector() -> Iterator[list[Connection]]:
    spawn, pipes, processes = get_context("spawn"), [], []
    for number in range(_ENVIRONMENTS):
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=simulate, args=(theirs,), name=f"env-{number}", daemon=True))
        processes[-1].start()
        pipes.append(ours)
    yield pipes
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()


def _observations(pipes: list[Connection]) -> Iterator[list[object]]:
    for pipe in pipes:
        pipe.send(0)
    for _ in range(_STEPS):
        observations = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(0)
        yield observations
    for pipe in pipes:
        pipe.recv()


def train(trainer: Trainer) -> None:
    try:
        while True:
            with _vector() as pipes:
                trainer.epoch(_observations(pipes), trainer.compute(_GPU_MS))
    except Over:
        return


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)
