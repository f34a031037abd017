"""Prioritized replay as first written: the learner's own loop walks the sum tree, unpacks the frames and stacks them for each update."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch
from torch.nn import functional

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_CAPACITY, _LEARNING_STARTS = 1 << 15, 2000
_BATCH, _STACK, _SIDE = 64, 4, 84
_ACTORS, _SENT = 2, 4


class Replay:
    """Packed frames in the order they came, and a sum tree over their priorities."""

    def __init__(self) -> None:
        self.count = 0
        self._frames = [b""] * _CAPACITY
        self._sums = [0.0] * (2 * _CAPACITY)

    def add(self, frame: bytes) -> None:
        self._frames[self.count % _CAPACITY] = frame
        self.update(self.count % _CAPACITY, 1.0)
        self.count += 1

    def update(self, index: int, priority: float) -> None:
        node = index + _CAPACITY
        change = priority - self._sums[node]
        while node:
            self._sums[node] += change
            node //= 2

    def draw(self) -> int:
        mass, node = random.random() * self._sums[1], 1
        while node < _CAPACITY:
            node *= 2
            if mass > self._sums[node]:
                mass -= self._sums[node]
                node += 1
        return node - _CAPACITY

    def sample(self, indices: list[int]) -> torch.Tensor:
        """States and the states after them, randomly shifted."""
        states = torch.stack([self._window(index) for index in indices]).float().div_(255)
        top, left = random.randrange(9), random.randrange(9)
        return functional.pad(states, (4, 4, 4, 4), mode="replicate")[..., top : top + _SIDE, left : left + _SIDE].contiguous()

    def _window(self, index: int) -> torch.Tensor:
        last = min(self.count, _CAPACITY) - 1
        frames = (self._frames[min(max(index + i, 0), last)] for i in range(-_STACK, 1))
        return torch.stack([torch.frombuffer(bytearray(zlib.decompress(frame)), dtype=torch.uint8).view(_SIDE, _SIDE) for frame in frames])


def _act(remote: Connection) -> None:
    """An environment: a ball and two paddles, stepped whenever the learner has taken what came before."""
    torch.set_num_threads(1)
    x, y, dx, dy = random.random(), random.random(), 0.03, 0.02
    background = torch.randint(0, 6, (_SIDE, _SIDE), dtype=torch.uint8)
    while remote.recv() is not None:
        sent = []
        for _ in range(_SENT):
            x, y = x + dx, y + dy
            dx, dy = (dx if 0 < x < 1 else -dx), (dy if 0 < y < 1 else -dy)
            screen = background.clone()
            for left, top in ((2, int(70 * y)), (80, int(70 * (1 - y))), (int(80 * x), int(80 * y))):
                screen[max(top, 0) : top + 12, max(left, 0) : left + 2] = 236
            sent.append(zlib.compress(bytes(screen.flatten().tolist()), 1))
        remote.send(sent)


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    replay, remotes, drawn, context = Replay(), [], [0], get_context("fork")
    for _ in range(_ACTORS):
        remote, work = context.Pipe()
        context.Process(target=_act, args=(work,), daemon=True).start()
        remote.send(0)
        remotes.append(remote)

    def batches() -> Iterator[torch.Tensor]:
        while True:
            for remote in filter(Connection.poll, remotes):
                for frame in remote.recv():
                    replay.add(frame)
                remote.send(replay.count)
            if replay.count >= _LEARNING_STARTS:
                drawn[:] = [replay.draw() for _ in range(_BATCH)]
                yield replay.sample(drawn)

    update = trainer.compute(30)

    def step(batch: object) -> None:
        update(batch)
        trainer.gpu.copy_out(4 * _BATCH)
        for index in drawn:
            replay.update(index, random.expovariate(1))

    trainer.fit(batches(), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
