"""Clips of video as float32: a prefetcher copies the next ones on a stream of its own, but a copy lasts twice as long as a step."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_CLIPS, _FRAMES, _FRAME_BYTES = 16, 64, 3 * 224 * 224 * 4
_BATCH_BYTES = _CLIPS * _FRAMES * _FRAME_BYTES  # 617 MB, 51 ms of the bus; as bytes it would be a quarter of that
_BLOCKS, _FORWARD_MS, _BACKWARD_MS = 6, 1.1, 2.2
_SLOTS, _ACCUMULATED, _LOGGED = 3, 2, 8


class Clips(IterableDataset[torch.Tensor]):
    """Batches that are whole already; a small tensor stands for the clips that the worker has decoded."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.stack([decode(0.4) for _ in range(_CLIPS)])


class Slot:
    """Pinned memory for a batch, its place on the GPU, and the event that says its copy is done."""

    def __init__(self, cuda: ctypes.CDLL) -> None:
        self.host, self.device, self.copied = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cudaHostAlloc(ctypes.byref(self.host), ctypes.c_size_t(_BATCH_BYTES), 0)
        cuda.cudaMalloc(ctypes.byref(self.device), ctypes.c_size_t(_BATCH_BYTES))
        cuda.cudaEventCreateWithFlags(ctypes.byref(self.copied), 2)


def prefetched(batches: Iterable[object]) -> Iterator[object]:
    """Each batch once the compute stream was told to wait for it, with the copy of the next one queued behind it."""
    cuda, stream, previous = ctypes.CDLL("libcudart.so.12"), ctypes.c_void_p(), None
    cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    slots = deque(Slot(cuda) for _ in range(_SLOTS))
    for batch in batches:
        cuda.cudaEventSynchronize(slots[0].copied)  # of the batch that was here before
        cuda.cudaMemcpyAsync(slots[0].device, slots[0].host, ctypes.c_size_t(_BATCH_BYTES), 1, stream)
        cuda.cudaEventRecord(slots[0].copied, stream)
        if previous is not None:
            cuda.cudaStreamWaitEvent(None, slots[-1].copied, 0)
            yield previous
        previous = batch
        slots.rotate(-1)


def train(trainer: Trainer) -> None:
    gpu, clips = trainer.gpu, DataLoader(Clips(), batch_size=None, num_workers=1, multiprocessing_context="spawn", prefetch_factor=6)

    def step(_batch: object) -> None:
        for length_ms in (_FORWARD_MS, _BACKWARD_MS):
            for _ in range(_BLOCKS):
                gpu.launch(length_ms)
        if trainer.steps % _ACCUMULATED == 0:
            gpu.launch(1.5)  # the optimizer
        if trainer.steps % _LOGGED == 0:
            gpu.synchronize()

    trainer.fit(prefetched(clips), step)


SCENARIO = Scenario(Label("transfer-bound", "h2d-transfer"), train)
