"""Three actors meet at a barrier before each rollout, and the simulator of one of them deadlocks.

Each actor talks to a simulator, a program of its own, through pipes. From the onset on one simulator takes a lock that it already
holds: it never answers, its actor waits for it, the other actors wait at the barrier, and the learner for all of them. No process
has died and nobody computes: one that hangs holds up everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_ACTORS, _STEPS, _FRAMES_BYTES, _GPU_MS = 3, 8, 200_000, 25
_SIMULATOR = """
import os, sys, threading
scene = threading.Lock()
for action in sys.stdin:
    with scene:
        if os.path.exists(sys.argv[1]):
            scene.acquire()
        state = sum(i * i for i in range(2000))
    print(state, flush=True)
"""


def _act(actor: int, together: Barrier, rollouts: Connection) -> None:
    stuck = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / f"stuck-{actor}"
    command = [sys.executable, "-c", _SIMULATOR, str(stuck)]
    simulator = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert simulator.stdin is not None
    assert simulator.stdout is not None
    while True:
        together.wait()
        states, frames = [], bytes(_FRAMES_BYTES)
        for _ in range(_STEPS):
            simulator.stdin.write("1\n")
            states.append(int(simulator.stdout.readline()))
        rollouts.send((states, frames))


def _batches() -> Iterator[list[object]]:
    fork, ends = get_context("fork"), []
    together = fork.Barrier(_ACTORS)
    for actor in range(_ACTORS):
        end, rollouts = fork.Pipe(duplex=False)
        fork.Process(target=_act, args=(actor, together, rollouts), name=f"actor-{actor}", daemon=True).start()
        ends.append(end)
    while True:
        yield [end.recv() for end in ends]


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(_GPU_MS))


@contextmanager
def deadlock(running: Running) -> Iterator[None]:
    (running.folder / "stuck-1").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, deadlock)
