"""Short epochs without persistent_workers, whose dataset holds its annotations in a list: the trainer pickles it for each new worker."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_BATCHES = 80


class Annotated(Images):
    """Images with the annotations of the whole data set beside them, as COCO's."""

    def __init__(self, cpu_ms: float, length: int, annotations: int) -> None:
        super().__init__(cpu_ms, length)
        self.annotations = [
            {"file": f"train2017/{i:012}.jpg", "caption": f"a person beside {i} dogs", "box": [i * 0.5, i * 0.25, i + 1.0, i + 2.0]}
            for i in range(annotations)
        ]


def train(trainer: Trainer) -> None:
    dataset = Annotated(cpu_ms=0.5, length=8 * _BATCHES, annotations=250_000)
    trainer.fit(loader(dataset, workers=2, start="spawn", persistent_workers=False), trainer.compute(30))


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)
