"""Self-play: after each fifty updates the new network has to beat the old one, and training waits for the matches.

Between the arenas a thread draws batches ahead and the GPU is busy. In an arena a pool of processes plays for more than a second,
and the trainer does nothing but wait for the score. The loader is not to blame, as its queue is full: an evaluation is what
interrupts the training.
"""

from __future__ import annotations

import random
import time
from multiprocessing import get_context
from queue import Queue
from threading import Thread

from tests.workloads.loop import Over, Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_UPDATES, _GPU_MS, _ARENA_CPU_S = 50, 20, 1.3
_LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def _play(seed: int) -> int:
    """Games of noughts and crosses; what the first player won more than the second."""
    until, score, choice = time.thread_time() + _ARENA_CPU_S, 0, random.Random(seed)
    while time.thread_time() < until:
        board, winner = [0] * 9, 0
        for turn, square in enumerate(choice.sample(range(9), 9)):
            board[square] = 1 - turn % 2 * 2
            winner = next((board[a] for a, b, c in _LINES if board[a] == board[b] == board[c] != 0), 0)
            if winner:
                break
        score += winner
    return score


def _draw(ready: Queue[bytes]) -> None:
    positions = random.Random(1)
    while True:
        ready.put(positions.randbytes(1 << 16))


def train(trainer: Trainer) -> None:
    ready: Queue[bytes] = Queue(4)
    with get_context("fork").Pool(cpus()) as arena:
        Thread(target=_draw, args=(ready,), daemon=True).start()
        try:
            while True:
                trainer.epoch((ready.get() for _ in range(_UPDATES)), trainer.compute(_GPU_MS))
                sum(arena.map(_play, range(cpus()), chunksize=1))
        except Over:
            return


SCENARIO = Scenario(Label("idle", "pause"), train)
