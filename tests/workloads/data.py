"""Datasets whose samples cost what they say: CPU in real transforms, or reads of real files."""

from __future__ import annotations

import time
import zlib

import torch
from torch.utils.data import Dataset

_SIDE = 48
_PACKED = zlib.compress(bytes(range(256)) * (_SIDE * _SIDE * 3 // 256), 1)


def decode(cpu_ms: float) -> torch.Tensor:
    """Unpack and normalize an image, as often as it takes to use ``cpu_ms`` of this thread's CPU time (not of the clock's)."""
    until = time.thread_time() + cpu_ms / 1e3
    while True:
        raw = torch.frombuffer(bytearray(zlib.decompress(_PACKED)), dtype=torch.uint8)
        image = raw.reshape(3, _SIDE, _SIDE).float().sub_(127).div_(64)
        if time.thread_time() >= until:
            return image


class Images(Dataset[torch.Tensor]):
    """``length`` images, each ``cpu_ms`` of decoding."""

    def __init__(self, cpu_ms: float, length: int = 1 << 20) -> None:
        self.cpu_ms = cpu_ms
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(self.cpu_ms)


def numbers(cpu_ms: float) -> int:
    """Parse text in pure Python for ``cpu_ms`` of this thread's CPU time, holding the GIL throughout."""
    until, total, row = time.thread_time() + cpu_ms / 1e3, 0, "3.1415 2.7182 1.4142 0.5772"
    while time.thread_time() < until:
        for word in row.split():
            total += int(float(word) * 1e4) % 7919
    return total
