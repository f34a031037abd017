"""Every few seconds the training script writes down what the model says and waits for an external program to score it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.pause import disturb

_TRAIN_S = 3.0
_SCORER = """
import sys, time
pairs = [line.rstrip().split("|") for line in open(sys.argv[1])]
while time.process_time() < 2.2:
    for said, meant in pairs:
        row = list(range(len(meant) + 1))
        for i, a in enumerate(said, 1):
            last, row[0] = row[0], i
            for j, b in enumerate(meant, 1):
                last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
print(row[-1])
"""


def train(trainer: Trainer) -> None:
    compute, folder = trainer.compute(40), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    said, scored = folder / "said.txt", [0.0]

    def step(batch: object) -> None:
        compute(batch)
        if (folder / "save").exists() and time.monotonic() - scored[0] > _TRAIN_S:
            said.write_text("what the model says | what was meant\n" * 200)
            subprocess.run([sys.executable, "-c", _SCORER, str(said)], check=True, capture_output=True)
            scored[0] = time.monotonic()

    trainer.fit(loader(Images(cpu_ms=0.8), workers=2), step)


SCENARIO = Scenario(Label("idle", "pause"), train, disturb)
