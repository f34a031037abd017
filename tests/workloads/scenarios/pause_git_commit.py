"""A callback saves the adapter and the optimizer's state now and then, and commits them with git before training goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_CONTEXT, _BATCH, _STEP_MS = 1024, 8, 20
_SAVE_STEPS, _LOGGING_STEPS = 35, 7
_LAYERS, _WIDTH, _RANK = 16, 2048, 16
_GIT = ("git", "-c", "user.name=trainer", "-c", "user.email=trainer@localhost", "-c", "gc.auto=0", "-c", "maintenance.auto=false")


class Instructions(Dataset[torch.Tensor]):
    """Tokens of an instruction and its answer, cut or filled to the context."""

    def __len__(self) -> int:
        return 1 << 18

    def __getitem__(self, index: int) -> torch.Tensor:
        tokens = torch.randint(50_257, (100 + index % _CONTEXT,))[:_CONTEXT]
        return torch.nn.functional.pad(tokens, (0, _CONTEXT - len(tokens)), value=50_256)


class Repository:
    """The folder of the run, as a clone of the model's repository on a hub."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run(["git", "init", "--quiet", folder], check=True)

    def commit(self, state: dict[str, dict[str, torch.Tensor]], step: int) -> None:
        """Write ``state``, one file each, and wait until git has it."""
        for name, tensors in state.items():
            torch.save(tensors, self.folder / f"{name}.bin")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", f"Training in progress, step {step}")

    def _git(self, *arguments: str) -> None:
        subprocess.run([*_GIT, *arguments], cwd=self.folder, capture_output=True, check=True)


def train(trainer: Trainer) -> None:
    gpu, repository = trainer.gpu, Repository(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "adapter")
    shape = {"lora_A": (_RANK, _WIDTH), "lora_B": (_WIDTH, _RANK)}
    names = {f"layers.{layer}.q_proj.{half}": shape[half] for layer in range(_LAYERS) for half in shape}
    state = {file: {name: torch.randn(size) for name, size in names.items()} for file in ("adapter_model", "exp_avg")}

    def step(_batch: object) -> None:
        gpu.copy_in(8 * _BATCH * _CONTEXT, pinned=True)
        for share in (0.3, 0.6, 0.1):  # forward, backward, optimizer
            gpu.launch(_STEP_MS * share)
        if trainer.steps % _LOGGING_STEPS == _LOGGING_STEPS - 1:
            gpu.synchronize()
        if trainer.steps % _SAVE_STEPS == _SAVE_STEPS - 1:
            gpu.copy_out(sum(tensor.nbytes for tensors in state.values() for tensor in tensors.values()))
            for tensor in (tensor for tensors in state.values() for tensor in tensors.values()):
                tensor.normal_()
            repository.commit(state, trainer.steps)

    trainer.fit(loader(Instructions(), workers=1, batch=_BATCH, shuffle=True), step)


def _needs() -> str:
    return "" if shutil.which("git") else "git is missing"


SCENARIO = Scenario(Label("idle", "pause"), train, env={"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}, needs=_needs)
