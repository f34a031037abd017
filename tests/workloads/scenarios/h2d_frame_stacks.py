"""A DQN learner whose replay memory lies in ordinary host memory: each update copies both frame stacks of 1024 transitions as float32.

Sampling takes slices of episodes and costs nothing, no process feeds it, and the update itself takes 14 ms. The two copies of 115 MB from
pageable memory (`.to(device)` of what `torch.stack` made, never pinned) and those of actions, rewards and ends take longer than that, and
the GPU computes nothing meanwhile. Time goes into host-to-device transfers.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_BATCH = 1024
_STACK_BYTES = _BATCH * 4 * 84 * 84 * 4
_EPISODES, _STEPS = 200, 2000


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def update(transitions: object) -> None:
        actions, rewards, ends = transitions  # type: ignore[misc]
        for frames in (_STACK_BYTES, _STACK_BYTES):  # this state's and the next one's
            gpu.copy_in(frames)
        for column in (actions, rewards, ends):
            gpu.copy_in(len(column) * column.itemsize)
        for length_ms in (2.5, 2.5, 6, 3):  # online and target network, backward, Adam
            gpu.launch(length_ms)
        if trainer.steps % 50 == 0:
            gpu.synchronize()

    trainer.fit(_replay(), update)


def _replay() -> Iterator[tuple[array[int], array[float], array[int]]]:
    """Slices of episodes: actions, rewards and ends."""
    actions = array("q", bytes(8 * _STEPS))
    rewards = array("f", bytes(4 * _STEPS))
    ends = array("b", bytes(_STEPS))
    while True:
        first = random.randrange(_STEPS - _BATCH)
        taken = slice(first, first + _BATCH)
        yield actions[taken], rewards[taken], ends[taken]


SCENARIO = Scenario(Label("transfer-bound", "h2d-transfer"), train)
