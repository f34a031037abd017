"""A trainer that saves every 25 steps and keeps the last three checkpoints, in the loop itself.

Each save brings the weights home, pickles them, writes the history of all steps as indented JSON, takes the digest of the file, syncs it
to disk and deletes the oldest. Nothing else runs meanwhile: the loader's workers are far ahead and the GPU has no work. Half of the time
goes into saves, which is a pause for checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_EVERY = 25
_KEPT = 3
_LAYERS, _WEIGHTS = 10, 1 << 20


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "checkpoints"
    folder.mkdir()
    weights = {f"layers.{layer}.weight": torch.randn(_WEIGHTS) for layer in range(_LAYERS)}
    history = [{"step": step, "loss": 1 / (step + 1), "learning_rate": 3e-4, "grad_norm": 0.7} for step in range(60_000)]
    usual = trainer.compute(20)

    def step(batch: object) -> None:
        usual(batch)
        if trainer.steps % _EVERY == _EVERY - 1:
            trainer.gpu.copy_out(4 * _LAYERS * _WEIGHTS)
            _save(folder, trainer.steps, weights, history)

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


def _save(folder: Path, number: int, weights: dict[str, torch.Tensor], history: list[dict[str, float]]) -> None:
    path = folder / f"{number:08}.pt"
    with path.open("wb") as file:
        torch.save({"model": weights, "trainer_state": json.dumps(history, indent=2)}, file)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    for old in sorted(folder.glob("*.pt"))[:-_KEPT]:
        old.unlink()


SCENARIO = Scenario(Label("idle", "pause"), train)
