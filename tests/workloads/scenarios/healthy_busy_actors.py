"""Off-policy reinforcement learning: actors play as much as they can, the learner samples what there is and waits for nobody.

Two actors of a fork server write transitions into shared memory and are busy for half of the time. They come and go as they please:
the learner draws a batch from memory in under a millisecond, however fast they are. Its GPU is busy nearly always.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterator
from multiprocessing import get_context

from tests.workloads.data import numbers
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_ACTORS, _TRANSITION_BYTES, _ROOM = 2, 256, 1 << 14
_PLAY_MS, _RENDER_S, _GPU_MS, _BATCH = 8, 0.008, 30, 128


def act(array: ctypes.Array[ctypes.c_ubyte], actor: int) -> None:
    """Play, and write over the oldest transitions."""
    memory, at = memoryview(array).cast("B"), actor
    while True:
        transition = numbers(_PLAY_MS).to_bytes(8, "little") * (_TRANSITION_BYTES // 8)
        memory[at * _TRANSITION_BYTES : (at + 1) * _TRANSITION_BYTES] = transition
        at = (at + _ACTORS) % _ROOM
        time.sleep(_RENDER_S)  # the game's own clock


def _samples(memory: memoryview) -> Iterator[bytes]:
    choice = random.Random(3)
    while True:
        places = (choice.randrange(_ROOM) * _TRANSITION_BYTES for _ in range(_BATCH))
        yield b"".join(bytes(memory[at : at + _TRANSITION_BYTES]) for at in places)


def train(trainer: Trainer) -> None:
    forkserver = get_context("forkserver")
    memory = forkserver.RawArray(ctypes.c_ubyte, _ROOM * _TRANSITION_BYTES)
    for actor in range(_ACTORS):
        forkserver.Process(target=act, args=(memory, actor), name=f"actor-{actor}", daemon=True).start()
    trainer.fit(_samples(memoryview(memory).cast("B")), trainer.compute(_GPU_MS))


SCENARIO = Scenario(HEALTHY, train)
