"""Detection over an archive: after each batch the script makes an object of each box and sends the list to a process that writes it down.

`Connection.send` pickles in the thread that calls it. Making and pickling the nine thousand boxes of a batch takes the main thread longer
than the GPU takes for its step; the writer only puts the bytes into a file and waits most of the time, as do the workers. The main
thread's Python between the steps is the cause.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_BOXES = 9000


class Box:
    """A detection."""

    def __init__(self, label: str, score: float, left: int, top: int, width: int, height: int) -> None:
        self.label, self.score = label, score
        self.left, self.top, self.width, self.height = left, top, width, height

    def __reduce__(self) -> tuple[type[Box], tuple[str, float, int, int, int, int]]:
        return Box, (self.label, self.score, self.left, self.top, self.width, self.height)


def train(trainer: Trainer) -> None:
    spawn = multiprocessing.get_context("spawn")
    reader, writer = spawn.Pipe(duplex=False)
    path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "boxes.pickle"
    spawn.Process(target=_write, args=(reader, path), daemon=True).start()

    def detect(_batch: object) -> None:
        trainer.gpu.copy_in(4 << 20, pinned=True)
        for _ in range(4):
            trainer.gpu.launch(3)
        trainer.gpu.copy_out(24 * _BOXES)
        writer.send([_box(number) for number in range(_BOXES)])

    trainer.fit(loader(Images(cpu_ms=0.4), workers=2), detect)


def _box(number: int) -> Box:
    return Box(f"class {number % 80}", 1 / (1 + number), number % 640, number % 480, number % 97, number % 89)


def _write(reader: Connection, path: Path) -> None:
    with path.open("wb") as file:
        while True:
            file.seek(0)  # the newest is enough here
            file.write(reader.recv_bytes())


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
