"""Two short trainings on the CPU, by Lightning and by Hugging Face's Trainer, with gputop's callbacks; prints what was logged as JSON.

The collector is a recording of a starved job, played at once, for a training of a second on no GPU has no verdict of its own.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.loggers.logger import Logger
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer as HuggingTrainer
from transformers import TrainerCallback, TrainingArguments

from gputop.api import watching
from gputop.integrations import lightning, transformers

SECONDS = 60.0  # until the numbers must be there; about one is needed


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Endless rows, as far as these trainings go."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(2)}


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).mean()}

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        time.sleep(0.01)
        return self(**batch)["loss"]  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Kept(Logger):
    """A logger of Lightning's that keeps what it is told; it stops the training once that has gputop's numbers."""

    name = version = "kept"

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, float] = {}
        self.texts: list[str] = []

    @property
    def experiment(self) -> Kept:
        return self

    def add_text(self, _: str, text: str, __: int) -> None:
        self.texts.append(text)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # noqa: ARG002
        self.metrics |= metrics
        trainer.should_stop = "gputop/lost_share" in self.metrics

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


class Reporter(TrainerCallback):
    """A reporter as TensorBoard's; it stops the training once it is told gputop's numbers."""

    def __init__(self) -> None:
        self.logs: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:  # noqa: ARG002
        self.logs |= logs
        control.should_training_stop = "gputop/lost_share" in logs
        time.sleep(0.01)


if __name__ == "__main__":
    watching.collector_argv = lambda _flags: ["sh", "-c", 'cat "$0"; exec sleep 60', sys.argv[1]]
    records: list[str] = []
    heard = logging.Handler()
    heard.emit = lambda record: records.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("gputop").addHandler(heard)
    logging.getLogger("gputop").setLevel(logging.INFO)
    kept, folder = Kept(), tempfile.mkdtemp()
    trainer = Trainer(
        logger=kept, callbacks=[lightning.GputopCallback(every_s=0.05)], max_time={"seconds": SECONDS}, accelerator="cpu",
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(Rows()))
    args = TrainingArguments(
        folder, report_to="none", use_cpu=True, logging_steps=1, save_strategy="no", disable_tqdm=True, max_steps=int(SECONDS * 100)
    )
    reporter = Reporter()
    hugging = HuggingTrainer(torch.nn.ModuleList([model := Model()])[0], args, train_dataset=Rows(), callbacks=[reporter])
    transformers.GputopCallback().attach(hugging)
    hugging.train()
    history = [one for one in hugging.state.log_history if "gputop/verdict" in one]
    print(json.dumps({"lightning": kept.metrics, "texts": kept.texts, "hugging": reporter.logs, "history": history[-1:], "log": records}))
