"""Training as people write it, on a real GPU: `python -m tests.device.jobs NAME --seconds S`. Each is labelled as tests/workloads are."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.device.labels import JOBS

_PICTURES, _SIDE = 200, 640
_GPU = torch.device("cuda")


class Over(Exception):
    """The time has passed."""


class Clock:
    """Counts steps; raises `Over` when the time has come."""

    def __init__(self, seconds: float) -> None:
        self.steps = 0
        self._end = 0.0
        self._seconds = seconds

    def tick(self) -> None:
        """A step is over; the time counts from the first."""
        self.steps += 1
        self._end = self._end or time.monotonic() + self._seconds
        if time.monotonic() > self._end:
            raise Over


class Pictures(Dataset[Any]):
    """JPEGs that are decoded, cropped and turned by PIL, as torchvision's examples do."""

    def __init__(self, folder: Path) -> None:
        from torchvision import transforms

        self._files = _make_pictures(folder)
        self._transform = transforms.Compose([
            transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ColorJitter(0.2, 0.2, 0.2),
            transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ])  # fmt: skip

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, at: int) -> Any:
        from PIL import Image

        with Image.open(self._files[at % len(self._files)]) as picture:
            return self._transform(picture.convert("RGB")), at % 1000


class Tokens(Dataset[Any]):
    """Documents of random tokens."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, at: int) -> Any:
        return torch.randint(0, 50257, (self._length + 1,), generator=torch.Generator().manual_seed(at))


def _make_pictures(folder: Path) -> list[Path]:
    from PIL import Image

    files = []
    for at in range(_PICTURES):
        noise = torch.randint(0, 255, (_SIDE // 8, _SIDE // 8, 3), dtype=torch.uint8).numpy()
        files.append(folder / f"{at}.jpg")
        Image.fromarray(noise).resize((_SIDE, _SIDE)).save(files[-1], quality=90)
    return files


def _train_pictures(clock: Clock, folder: Path, workers: int, batch: int = 128) -> None:
    from torchvision.models import resnet50

    model = resnet50().to(_GPU, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
    loader: Iterable[Any] = DataLoader(Pictures(folder), batch, shuffle=True, num_workers=workers, pin_memory=True, **options)
    for images, labels in loader:
        images = images.to(_GPU, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels.to(_GPU, non_blocking=True))
        descend(loss, optimizer)
        if clock.steps % 10 == 0:
            loss.item()
        clock.tick()


def descend(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Backward and step."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def gpt(width: int, layers: int) -> nn.Module:
    """A language model of GPT-2's shape, on the host yet."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=width, n_layer=layers, n_head=max(1, width // 64), n_positions=1024))


def _train_gpt(clock: Clock, width: int, layers: int, length: int, batch: int, log_every: int, pause: Callable[[nn.Module], None]) -> None:
    model = gpt(width, layers).to(_GPU)
    optimizer = torch.optim.AdamW(model.parameters(), fused=log_every > 1)
    for tokens in DataLoader(Tokens(length), batch, num_workers=2, pin_memory=True, persistent_workers=True):
        tokens = tokens.to(_GPU, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens[:, :-1], labels=tokens[:, 1:].contiguous()).loss
        descend(loss, optimizer)
        if clock.steps % log_every == 0:
            loss.item()
        if clock.steps % 20 == 19:
            pause(model)
        clock.tick()


def _nothing(_: nn.Module) -> None:
    pass


def pictures_two_workers(clock: Clock, folder: Path) -> None:
    """Two workers decode for a GPU that wants sixteen."""
    _train_pictures(clock, folder, workers=2)


def pictures_main_thread(clock: Clock, folder: Path) -> None:
    """num_workers=0: the training thread decodes."""
    _train_pictures(clock, folder, workers=0, batch=32)


def trains_gpt(clock: Clock, _: Path) -> None:
    """A language model that keeps the GPU busy: healthy."""
    _train_gpt(clock, 1024, 12, 1023, 16, 10, _nothing)


def gpt_tiny(clock: Clock, _: Path) -> None:
    """The same so small that launching it takes longer than running it."""
    _train_gpt(clock, 128, 12, 64, 1, 1, _nothing)


def gpt_checkpoints(clock: Clock, folder: Path) -> None:
    """Every 20 steps the training thread writes all weights to the disk."""
    _train_gpt(clock, 1024, 12, 1023, 16, 10, lambda model: torch.save(model.state_dict(), folder / "checkpoint.pt"))


def items(clock: Clock, _: Path) -> None:
    """A loss of many parts, each asked for by `.item()`."""
    x = torch.randn(2048, 2048, device=_GPU)
    while True:
        total = 0.0
        for _ in range(200):
            total += torch.mm(x, x).mean().item()
        clock.tick()


def pageable(clock: Clock, _: Path) -> None:
    """Batches of 400 MB from memory that is not pinned."""
    weights, host = torch.randn(4096, 4096, device=_GPU), torch.randn(25_000, 4096)
    while True:
        batch = host.to(_GPU)
        (batch @ weights).mean().item()
        clock.tick()


def pinned(clock: Clock, _: Path) -> None:
    """Batches of 3 GB from pinned memory, as fast as the link goes, and little to compute: NVML says that the GPU works all the time."""
    weights, host = torch.randn(4096, 1024, device=_GPU), torch.randn(200_000, 4096).pin_memory()
    while True:
        batch = host.to(_GPU, non_blocking=True)
        (batch @ weights).mean().item()
        clock.tick()


def graphs(clock: Clock, _: Path) -> None:
    """A captured step that is replayed: no launches, no waits to see, and nothing wrong."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(12))).to(_GPU, torch.bfloat16)
    x = torch.randn(4096, 4096, device=_GPU, dtype=torch.bfloat16)
    step = torch.cuda.make_graphed_callables(model, (x.requires_grad_(),))
    while True:
        step(x).float().mean().backward()
        if clock.steps % 10 == 0:
            torch.cuda.synchronize()
        clock.tick()


def jax_step(clock: Clock, _: Path) -> None:
    """JAX: one compiled step after the other."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    @jax.jit
    def step(w: Any, x: Any) -> Any:
        loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * grad, loss

    w, x = jnp.ones((8192, 8192), jnp.bfloat16), jnp.ones((8192, 8192), jnp.bfloat16)
    while True:
        w, loss = step(w, x)
        if clock.steps % 10 == 0:
            float(loss)
        clock.tick()


_WORK: dict[str, Callable[[Clock, Path], None]] = {
    "pictures-two-workers": pictures_two_workers, "pictures-main-thread": pictures_main_thread, "gpt": trains_gpt, "gpt-tiny": gpt_tiny,
    "gpt-checkpoints": gpt_checkpoints, "items": items, "pageable": pageable, "pinned": pinned, "graphs": graphs, "jax": jax_step,
}  # fmt: skip


def main() -> None:
    """Run one job, and say how many steps it made."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=JOBS)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    clock = Clock(options.seconds)
    with tempfile.TemporaryDirectory(prefix="gputop-job-") as folder:
        try:
            _WORK[options.name](clock, Path(folder))
        except Over:
            print(f"{options.name}: {clock.steps} steps in {options.seconds:g} s", flush=True)


if __name__ == "__main__":
    main()
