"""Training on the frameworks that people use, most with one habit that keeps the GPU waiting: for `tests.device.complaints`."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from tests.device import jobs
from tests.device.jobs import Clock, Pictures, descend

DEVICE = os.environ.get("GPUTOP_JOB_DEVICE", "cuda")
SMALL = DEVICE == "cpu"
"""Tried where there is no GPU: the same code, and next to nothing to compute."""


def warm_up() -> None:
    """Import what the jobs share; nothing may touch the GPU before they are forked."""
    import matplotlib
    import torchvision
    import transformers

    matplotlib.use("Agg")
    import matplotlib.pyplot

    _ = transformers.GPT2LMHeadModel, transformers.Trainer, matplotlib.pyplot, torchvision.transforms


def gpt(width: int, layers: int) -> Any:
    """As those of `jobs`, small where there is no GPU."""
    return (jobs.gpt(64, 1) if SMALL else jobs.gpt(width, layers)).to(DEVICE)


def train_pictures(clock: Clock, folder: Path, count: int = 100_000, **options: Any) -> None:
    """ResNet-50 in bfloat16 over ``count`` JPEGs an epoch, as torchvision's examples have it."""
    import torch
    from torch.utils.data import DataLoader, Subset
    from torchvision.models import resnet18, resnet50

    model = (resnet18 if SMALL else resnet50)().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Subset(Pictures(folder), range(count)), shuffle=True, pin_memory=not SMALL, **options)
    while True:
        for images, labels in loader:
            images = images.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels.to(DEVICE, non_blocking=True))
            descend(loss, optimizer)
            clock.tick()


def respawns(clock: Clock, folder: Path) -> None:
    """Short epochs, and workers that are born for each."""
    train_pictures(clock, folder, 320, batch_size=64, num_workers=12)


def crowded(clock: Clock, folder: Path) -> None:
    """Four workers for each CPU, which fight for these, and feed a GPU for which eager launching takes as long."""
    train_pictures(clock, folder, batch_size=64, num_workers=4 * (os.cpu_count() or 1), prefetch_factor=1)


def spawned(clock: Clock, folder: Path) -> None:
    """Three workers, started afresh instead of forked."""
    train_pictures(clock, folder, batch_size=64, num_workers=3, multiprocessing_context="spawn")


def memmap(clock: Clock, folder: Path, figures: bool = False) -> None:
    """nanoGPT's way: batches cut from a mapped file by the training thread, copied without waiting. Nothing is wrong."""
    import numpy as np
    import torch

    np.random.randint(0, 50257, 10_000_000).astype(np.uint16).tofile(folder / "train.bin")
    data = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")
    model, (length, batch) = gpt(1024, 12), (32, 1) if SMALL else (1023, 12)
    optimizer = torch.optim.AdamW(model.parameters(), fused=not SMALL)
    while True:
        starts = np.random.randint(0, len(data) - length - 1, batch)
        tokens = torch.stack([torch.from_numpy(data[at : at + length].astype(np.int64)) for at in starts])
        tokens = tokens if SMALL else tokens.pin_memory().to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        descend(loss, optimizer)
        if clock.steps % 10 == 0:
            loss.item()
        if figures and clock.steps % 5 == 0:
            _draw(folder)
        clock.tick()


def draws_figures(clock: Clock, folder: Path) -> None:
    """The same, but each five steps the training thread draws pictures for its log."""
    memmap(clock, folder, figures=True)


def _draw(folder: Path) -> None:
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(4, 4, figsize=(12, 12))
    for at in axes.flat:
        at.imshow(np.random.rand(256, 256))
    figure.savefig(folder / "log.png")
    plt.close(figure)


def tokenizes(clock: Clock, folder: Path) -> None:
    """Hugging Face's Trainer as it comes: no workers, and a collator that tokenizes long texts."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    tokenizer, texts = _tokenizer()

    class Tell(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

    def collate(batch: list[str]) -> dict[str, Any]:
        tokens = torch.tensor([tokenizer.encode(text).ids[:512] for text in batch])
        return {"input_ids": tokens, "labels": tokens}

    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=8, max_steps=100_000, logging_steps=10, save_strategy="no", report_to=[],
        disable_tqdm=True, bf16=not SMALL, remove_unused_columns=False, use_cpu=SMALL,
    )  # fmt: skip
    Trainer(gpt(768, 12), arguments, collate, [texts[at % 64] for at in range(100_000)], callbacks=[Tell()]).train()


def _tokenizer() -> tuple[Any, list[str]]:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    words = ["".join(random.choices("abcdefghijklmnop", k=random.randint(3, 9))) for _ in range(5000)]
    texts = [" ".join(random.choices(words, k=20_000)) for _ in range(64)]
    tokenizer = Tokenizer(BPE())
    tokenizer.train_from_iterator([text[:20_000] for text in texts[:8]], BpeTrainer(vocab_size=2000, show_progress=False))
    return tokenizer, texts


def generates(clock: Clock, _: Path) -> None:
    """A chat's answer, a token after the other, alone on its GPU."""
    import torch

    model = gpt(768, 12).eval()
    prompt = torch.randint(0, 50257, (1, 32), device=DEVICE)
    while True:
        model.generate(prompt, max_new_tokens=32, do_sample=True, pad_token_id=50256)
        clock.tick()


def compiles(clock: Clock, _: Path) -> None:
    """torch.compile, and each few steps another length: it compiles again and again."""
    import torch

    model = gpt(512, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(lambda tokens: model(tokens, labels=tokens).loss, dynamic=False)
    while True:
        clock.tick()
        descend(step(torch.randint(0, 50257, (4, 64 + 8 * (clock.steps // 4)), device=DEVICE)), optimizer)


def lightning(clock: Clock, _: Path) -> None:
    """Lightning with all its loops around a model that fills the GPU. Nothing is wrong."""
    import lightning as pl
    import torch
    from torch.utils.data import DataLoader

    width = 64 if SMALL else 8192

    class Model(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            layers = (torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(4))
            self.layers = torch.nn.Sequential(torch.nn.Embedding(1000, width), *layers)

        def training_step(self, batch: Any, _: int) -> Any:
            clock.tick()
            loss = self.layers(batch).square().mean()
            self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    rows = torch.randint(0, 1000, (65536, 16))
    loader = DataLoader(rows, 256 if not SMALL else 8, num_workers=4, persistent_workers=True, pin_memory=not SMALL)  # type: ignore[arg-type,var-annotated]
    trainer = pl.Trainer(
        max_epochs=-1, precision="bf16-mixed", logger=False, enable_checkpointing=False, enable_model_summary=False,
        accelerator=DEVICE, devices=1,
    )  # fmt: skip
    trainer.fit(Model(), loader)


JOBS = {
    "respawns": (respawns, "input-bound/worker-respawn"),
    "crowded": (crowded, "input-bound/worker-oversubscription or wait-heavy/small-kernels"),
    "spawned": (spawned, "input-bound/too-few-workers"),
    "memmap": (memmap, "healthy/none"),
    "draws-figures": (draws_figures, "input-bound/main-thread-preprocessing"),
    "tokenizes": (tokenizes, "input-bound/main-thread-preprocessing"),
    "generates": (generates, "wait-heavy/small-kernels or busy-not-working/small-kernels"),
    "compiles": (compiles, "input-bound/main-thread-preprocessing or idle/pause"),
    "lightning": (lightning, "healthy/none"),
}
"""Each, and what may be said of it."""
