"""Detection whose `collate_fn` matches every anchor of the pyramid with the boxes, image by image, in batches of one orientation."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_SHAPES = (256, 320), (320, 256)
_STRIDES, _SCALES, _RATIOS = (8, 16, 32, 64), (1.0, 1.26, 1.59), (0.5, 1.0, 2.0)
_IMAGES, _BATCH = 4096, 8
_TOO_SLOW = 1.5

Sample = tuple[torch.Tensor, torch.Tensor]


class Crowds(Dataset[Sample]):
    """Decoded images, each with the corners of 16 to 72 people."""

    def __len__(self) -> int:
        return _IMAGES

    def __getitem__(self, index: int) -> Sample:
        height, width = _SHAPES[index % 2]
        place = torch.Generator().manual_seed(index)
        corner = torch.rand(16 + index % 57, 2, generator=place) * torch.tensor([width, height]) * 0.8
        size = 12 + torch.rand(len(corner), 2, generator=place) * 60
        return torch.full((3, height, width), index % 256, dtype=torch.uint8), torch.cat([corner, corner + size], 1)


class ByOrientation(Sampler[list[int]]):
    """Batches of upright or of wide images, shuffled; the last ones of an epoch are smaller."""

    def __iter__(self) -> Iterator[list[int]]:
        batches: list[list[int]] = []
        for kind in (0, 1):
            order = random.sample(range(kind, _IMAGES, 2), _IMAGES // 2)
            batches += [order[at : at + _BATCH] for at in range(0, len(order), _BATCH)]
        return iter(random.sample(batches, len(batches)))


def anchors(height: int, width: int) -> torch.Tensor:
    """Corners of nine anchors at every place of every level."""
    found = []
    for stride in _STRIDES:
        y, x = torch.meshgrid(torch.arange(0, height, stride), torch.arange(0, width, stride), indexing="ij")
        centre = torch.stack([x, y], -1).reshape(-1, 1, 2) + stride / 2
        half = torch.tensor([[2 * stride * scale * ratio**0.5, 2 * stride * scale / ratio**0.5] for scale in _SCALES for ratio in _RATIOS])
        found.append(torch.cat([centre - half, centre + half], -1).reshape(-1, 4))
    return torch.cat(found)


def encode(boxes: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Each anchor's offsets to the box that it covers best, and that overlap."""
    low = torch.maximum(grid[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(grid[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp_(min=0).prod(2)
    own, theirs = (grid[:, 2:] - grid[:, :2]).prod(1), (boxes[:, 2:] - boxes[:, :2]).prod(1)
    overlap, which = (shared / (own[:, None] + theirs[None] - shared)).max(1)
    box, size = boxes[which], grid[:, 2:] - grid[:, :2]
    offset = ((box[:, :2] + box[:, 2:]) - (grid[:, :2] + grid[:, 2:])) / (2 * size)
    return torch.cat([offset, ((box[:, 2:] - box[:, :2]) / size).log(), overlap[:, None]], 1)


def collate(samples: list[Sample]) -> Sample:
    """The images, and the targets of all their anchors."""
    images = torch.stack([image for image, _ in samples]).float().div_(255)
    grid = anchors(images.shape[2], images.shape[3])
    return images, torch.stack([encode(boxes, grid) for _, boxes in samples])


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    crowds, costs = Crowds(), []
    for first in range(0, 6 * _BATCH, _BATCH):
        began = time.thread_time()
        collate([crowds[index * 2] for index in range(first, first + _BATCH)])
        costs.append(time.thread_time() - began)
    step = trainer.compute(sorted(costs)[2] * 1e3 / cpus() / _TOO_SLOW)
    trainer.fit(DataLoader(crowds, batch_sampler=ByOrientation(), num_workers=cpus(), collate_fn=collate, persistent_workers=True), step)


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
