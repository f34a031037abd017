"""Every forty steps the model is validated on a dozen batches, from a second loader, after a sanity check before training.

The kernels of the validation keep the GPU as busy as those of training, and both loaders have persistent workers which are ahead
when their turn comes. Power and launches change, the roles of the loaders change, the workers of one sleep while the other works;
the GPU hardly ever waits. Nothing is wrong.
"""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_EVERY_STEPS, _BATCHES = 40, 12


def train(trainer: Trainer) -> None:
    learn, judge = trainer.compute(30), trainer.compute(24, kernels=12)
    validation = loader(Images(0.5, length=8 * _BATCHES), workers=1, start="spawn", prefetch_factor=4)

    def validate() -> None:
        for held_out in validation:
            judge(held_out)

    def step(batch: object) -> None:
        learn(batch)
        if trainer.steps % _EVERY_STEPS == _EVERY_STEPS - 1:
            validate()

    validate()
    trainer.fit(loader(Images(0.5), workers=2, start="spawn"), step)


SCENARIO = Scenario(HEALTHY, train)
