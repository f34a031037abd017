"""Instance segmentation: a feeder thread sends each image's targets to the GPU one by one, pageable and with the masks as float32."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from queue import Queue
from threading import Thread

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_IMAGES, _PIXELS, _INSTANCES, _MASK_ITEM_BYTES = 4, 800 * 1088, 64, 4
_TARGET_BYTES = {
    "image": 3 * _PIXELS,
    "masks": _INSTANCES * _PIXELS * _MASK_ITEM_BYTES,  # 223 MB an image; as bool a quarter of that
    "boxes": _INSTANCES * 4 * 4,
    "labels": _INSTANCES * 8,
}
_BACKBONE, _HEADS, _KERNEL_MS = 6, 4, 4.0
_ON_DEVICE = 2

Batch = list[dict[str, torch.Tensor]]


class Scenes(IterableDataset[Batch]):
    """Batches as the collate function leaves them, a list of dicts; small tensors stand for the images and their masks."""

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield [dict.fromkeys(_TARGET_BYTES, decode(0.5)) for _ in range(_IMAGES)]


class Feeder:
    """Batches that a thread has copied to the GPU, on a stream of its own, while the model works on the one before."""

    def __init__(self, batches: DataLoader[Batch]) -> None:
        self._batches = batches
        self._cuda, self._stream, self._device = ctypes.CDLL("libcudart.so.12"), ctypes.c_void_p(), ctypes.c_void_p()
        self._cuda.cudaStreamCreateWithFlags(ctypes.byref(self._stream), 1)
        self._cuda.cudaMalloc(ctypes.byref(self._device), ctypes.c_size_t(_IMAGES * sum(_TARGET_BYTES.values())))
        self._host = ctypes.create_string_buffer(8)
        self._ready: Queue[Batch] = Queue(_ON_DEVICE)
        Thread(target=self._feed, name="feeder", daemon=True).start()

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._ready.get, None)

    def _feed(self) -> None:
        for batch in self._batches:
            for target in batch:
                for key in target:
                    self._cuda.cudaMemcpyAsync(self._device, self._host, ctypes.c_size_t(_TARGET_BYTES[key]), 1, self._stream)
            self._cuda.cudaStreamSynchronize(self._stream)
            self._ready.put(batch)


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        for _ in range(_BACKBONE + _HEADS):
            gpu.launch(_KERNEL_MS)
        gpu.synchronize()  # the losses, to be logged

    trainer.fit(Feeder(DataLoader(Scenes(), batch_size=None, num_workers=2, prefetch_factor=4)), step)


SCENARIO = Scenario(Label("transfer-bound", "h2d-transfer"), train)
