"""A clip server decodes in threads, in C and without the GIL, until its preview thread begins to pack what passes as GIFs in Python."""

from __future__ import annotations

import multiprocessing
import os
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import torch

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CLIPS, _FRAMES, _SIDE, _CROP = 8, 24, 128, 112
_AT_ONCE = 2  # pictures asked of the decoder
_SLOTS, _DECODERS = 6, 4
_BLOCKS, _BLOCK_MS = 12, 10.0
_PART_BYTES = _AT_ONCE * _SIDE * _SIDE * 3
_PACKED = zlib.compress(os.urandom(_PART_BYTES // 16) + bytes(range(256)) * (_PART_BYTES * 15 // 16 // 256), 1)


def _decode(into: torch.Tensor) -> None:
    top, left = torch.randint(_SIDE - _CROP, (2,)).tolist()
    for part in torch.split(into, _AT_ONCE, dim=1):
        pictures = torch.frombuffer(bytearray(zlib.decompress(_PACKED, bufsize=_PART_BYTES)), dtype=torch.uint8)
        crop = pictures.view(_AT_ONCE, _SIDE, _SIDE, 3)[:, top : top + _CROP, left : left + _CROP]
        part.copy_(crop.permute(3, 0, 1, 2))


def _lzw(pixels: bytes) -> list[int]:
    """The codes of a GIF's picture."""
    table, codes, word = {bytes([value]): value for value in range(256)}, [256], b""
    for value in pixels:
        longer = word + bytes([value])
        if longer in table:
            word = longer
            continue
        codes.append(table[word])
        table[longer] = len(table) + 2
        if len(table) == 4094:
            table = {bytes([value]): value for value in range(256)}
            codes.append(256)
        word = longer[-1:]
    return [*codes, table[word], 257]


def _preview(ring: torch.Tensor, folder: Path) -> None:
    """Every clip's first picture, while somebody wants to see them."""
    while True:
        while not (folder / "preview").exists():
            time.sleep(0.2)
        for clip in ring.flatten(0, 1):
            _lzw(bytes(clip[0, 0].flatten().tolist()))


def _serve(ring: torch.Tensor, free: int, filled: int, folder: Path) -> None:
    Thread(target=_preview, args=(ring, folder), daemon=True).start()
    with ThreadPoolExecutor(_DECODERS) as decoders:
        while True:
            for batch in ring:
                os.eventfd_read(free)
                list(decoders.map(_decode, batch))
                os.eventfd_write(filled, 1)


def _clips() -> Iterator[torch.Tensor]:
    """The batches of the server, each in memory that it shares and gets back."""
    ring = torch.empty(_SLOTS, _CLIPS, 3, _FRAMES, _CROP, _CROP, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
    free, filled = os.eventfd(_SLOTS, os.EFD_SEMAPHORE), os.eventfd(0, os.EFD_SEMAPHORE)
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    multiprocessing.get_context("fork").Process(target=_serve, args=(ring, free, filled, folder), daemon=True).start()
    while True:
        for batch in ring:
            os.eventfd_read(filled)
            yield batch
            os.eventfd_write(free, 1)


def train(trainer: Trainer) -> None:
    trainer.fit(_clips(), trainer.compute(_BLOCKS * _BLOCK_MS, kernels=_BLOCKS, bytes_in=_CLIPS * 3 * _FRAMES * _CROP * _CROP))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "preview").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train, disturb, env={"OMP_NUM_THREADS": "1"})
