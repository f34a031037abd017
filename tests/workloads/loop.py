"""The training loop, from the script's side: batches from a loader, steps on the GPU, until the time is over."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from torch.utils.data import DataLoader, Dataset

from tests.workloads.gpu import SMS, Gpu
from tests.workloads.scenario import INSTRUMENT_VARIABLE, LOADER_VARIABLE

_STEADY_STEPS = 5
Loop: TypeAlias = tuple[Iterable[object], Callable[[object], None]]


class Over(Exception):
    """The time of this workload has passed."""


class Trainer:
    """One rank: its GPU, its clock and its step counter."""

    def __init__(self, seconds: float, rank: int = 0) -> None:
        self.rank = rank
        self.gpu = Gpu(rank)
        self.steps = 0
        self._deadline = time.monotonic() + seconds
        self._log = _step_log(rank)
        self._instrument = _instrument()

    def fit(self, loader: Iterable[object], step: Callable[[object], None]) -> None:
        """Epoch after epoch of ``loader`` through ``step``, until the time is over."""
        try:
            while True:
                self.epoch(loader, step)
        except Over:
            return

    def epoch(self, loader: Iterable[object], step: Callable[[object], None]) -> None:
        """One epoch; raises `Over` when the time has come."""
        loader, step = self._instrument(loader, step)
        for batch in loader:
            step(batch)
            self.tick()

    def tick(self) -> None:
        """Count a step; raises `Over` at the end."""
        self.steps += 1
        if self._log:
            self._log.write(f"{time.monotonic():.6f}\n")
        if self.steps == _STEADY_STEPS:
            print("ready", flush=True)
        if time.monotonic() >= self._deadline:
            raise Over

    def compute(
        self, length_ms: float, blocks: int = SMS, kernels: int = 4, bytes_in: int = 1 << 20, pinned: bool = False
    ) -> Callable[[object], None]:
        """The usual step: the batch to the GPU, ``kernels`` that take ``length_ms`` together, and `loss.item()`."""

        def step(_batch: object) -> None:
            self.gpu.copy_in(bytes_in, pinned)
            for _ in range(kernels):
                self.gpu.launch(length_ms / kernels, blocks)
            self.gpu.synchronize()

        return step

    def compute_ahead(self, length_ms: float, every: int = 10) -> Callable[[object], None]:
        """The same, but only every so many steps the loss is asked for."""

        def step(_batch: object) -> None:
            self.gpu.copy_in(1 << 20, pinned=True)
            self.gpu.launch(length_ms)
            if self.steps % every == 0:
                self.gpu.synchronize()

        return step


def _instrument() -> Callable[[Iterable[object], Callable[[object], None]], Loop]:
    """A function that $GPUTOP_INSTRUMENT names, called with the loader and the step of each epoch; the two as they are without it."""
    module, _, name = os.environ.get(INSTRUMENT_VARIABLE, "").partition(":")
    found: Callable[[Iterable[object], Callable[[object], None]], Loop]
    found = getattr(importlib.import_module(module), name) if module else lambda loader, step: (loader, step)
    return found


def _step_log(rank: int) -> TextIO | None:
    """Where the time of each step goes, a line each, if $GPUTOP_STEP_LOG asks for it (`native.h` keeps the same). A training that disturbs
    a workload has no folder, and its steps are not the workload's."""
    folder = os.environ.get("GPUTOP_WORKLOAD_FOLDER")
    return Path(folder, f"steps-{rank}").open("a", buffering=1) if folder and os.environ.get("GPUTOP_STEP_LOG") else None


def loader(dataset: Dataset[object], workers: int, start: str = "fork", batch: int = 8, **more: object) -> DataLoader[object]:
    """A DataLoader with ``workers`` processes begun by ``start`` (fork, spawn, forkserver); persistent unless told otherwise."""
    options: dict[str, object] = {"persistent_workers": True, "multiprocessing_context": start} if workers else {}
    return DataLoader(dataset, batch_size=batch, num_workers=workers, **{**options, **more})  # type: ignore[arg-type]


def change_loaders() -> None:
    """Have each DataLoader that is made from now on take the arguments that $GPUTOP_LOADER has, in place of the program's own."""
    changed, made = json.loads(os.environ.get(LOADER_VARIABLE, "{}")), DataLoader.__init__

    def make(self: DataLoader[object], *arguments: Any, **more: Any) -> None:
        more |= changed
        if more.get("num_workers") == 0:
            for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):  # of workers
                more.pop(name, None)
        made(self, *arguments, **more)

    if changed:
        DataLoader.__init__ = make  # type: ignore[method-assign]
