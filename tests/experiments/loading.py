"""Data sets of known cost and odd habits, for the sweep. Imported once torch is known to be there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

torch.set_num_threads(1)  # as workers have it: OpenMP's threads wait for one another, for long where others run, too
ITEM_S = 0.004  # that an item takes, asleep


class Slow(Dataset):
    """Each item takes `ITEM_S` asleep. It counts and keeps what is read of it."""

    def __init__(self, length: int = 4000) -> None:
        self.length = length
        self.reads = 0
        self.kept: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        self.kept[index] = torch.tensor([float(index)])
        time.sleep(ITEM_S)
        return self.kept[index]


class Busy(Slow):
    """Each item takes so much CPU time of its thread."""

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.thread_time() + ITEM_S
        while time.thread_time() < end:
            pass
        return torch.tensor([float(index)])


class Large(Slow):
    """A picture of a megabyte, which the consumer has to take over."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 300, 300), float(index))


class Closing(Slow):
    """It closes what it has opened."""

    closed = 0

    def __del__(self) -> None:
        type(self).closed += 1


class Broken(Slow):
    """It reads 20 items, then fails."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 20:
            raise ValueError(f"item {index} is \x1b[31mbroken")
        return super().__getitem__(index)


class Stuck(Slow):
    """A worker takes a minute for an item."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(60)
        return super().__getitem__(index)


class Stream(IterableDataset):
    """So many items per worker."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self.length):
            time.sleep(ITEM_S)
            yield torch.tensor([float(index)])


class Pairs(Sampler[list[int]]):
    """Batches of two neighbours; it counts them."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.drawn = 0

    def __len__(self) -> int:
        return self.length // 2

    def __iter__(self) -> Iterator[list[int]]:
        for index in range(0, self.length - 1, 2):
            self.drawn += 1
            yield [index, index + 1]


def joined(items: list[torch.Tensor]) -> torch.Tensor:
    """A collate function."""
    return torch.stack(items)


def seeded(worker: int) -> None:
    """A worker_init_fn."""
    torch.manual_seed(worker)


class KeepsIterator(DataLoader):
    """A loader that starts its workers once, as some libraries' do."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)


def hostile() -> DataLoader:
    """A loader whose classes are named to disturb a terminal."""
    loader: type = type("Load\x1b[2Jer", (DataLoader,), {})
    data: type = type("Da\x1b]0;evil\x07ta", (Slow,), {})
    return loader(data(), batch_size=2)


def no_loader() -> int:
    """A function that returns something else."""
    return 5


def by_hand(loader: DataLoader, seconds: float) -> float:
    """Batches per second of a loop as tutorials write it, over whole rounds of workers, without their start and the first two rounds."""
    every, began, last = max(1, loader.num_workers), 0.0, 0
    for count, _ in enumerate(loader, 1):
        if count == 2 * every:
            began = time.monotonic()
        elif count > 2 * every and count % every == 0:
            last = count
            if time.monotonic() - began >= seconds:
                break
    return (last - 2 * every) / (time.monotonic() - began)


slow = DataLoader(Slow(), batch_size=4, shuffle=True)
print("imported")  # a script may print: standard output is the table's
if __name__ == "__main__":
    raise SystemExit("it trains")
