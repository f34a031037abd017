"""Workers read a batch's records with native AIO, all at once and past the page cache, from a volume that becomes slow."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import slow_disk
from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_BATCH, _RECORD_BYTES = 8, 64 << 10
_SLOW_BYTES_PER_S = 6 << 20
_IO_SETUP, _IO_GETEVENTS, _IO_SUBMIT = 206, 208, 209
_IOCB = struct.Struct("<QIIHhIQQqQII")
_EVENT_BYTES = 32


class Aio:
    """One process' context for reads of one file."""

    def __init__(self, path: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._memory = mmap.mmap(-1, _BATCH * _RECORD_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._events = ctypes.create_string_buffer(_BATCH * _EVENT_BYTES)
        self._context = ctypes.c_ulong()
        self._call(_IO_SETUP, ctypes.c_long(_BATCH), ctypes.byref(self._context))

    def read(self, records: list[int]) -> None:
        """Submit a read for each of ``records``, then wait for all."""
        requests = [self._request(slot, record * _RECORD_BYTES) for slot, record in enumerate(records)]
        pointers = (ctypes.c_void_p * len(requests))(*map(ctypes.addressof, requests))
        number = ctypes.c_long(self._call(_IO_SUBMIT, self._context, ctypes.c_long(len(requests)), pointers))
        self._call(_IO_GETEVENTS, self._context, number, number, self._events, None)

    def _request(self, slot: int, at: int) -> ctypes.Array[ctypes.c_char]:
        to = self._address + slot * _RECORD_BYTES
        return ctypes.create_string_buffer(_IOCB.pack(slot, 0, 0, 0, 0, self._file, to, _RECORD_BYTES, at, 0, 0, 0))

    def _call(self, number: int, *arguments: object) -> int:
        result: int = self._libc.syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result


class Records(Dataset[torch.Tensor]):
    """Images in one packed file, fetched by the batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aio: Aio | None = None

    def __len__(self) -> int:
        return slow_disk.FILE_BYTES // _RECORD_BYTES

    def __getitems__(self, indexes: list[int]) -> list[torch.Tensor]:
        self._aio = self._aio or Aio(self._path)
        self._aio.read(indexes)
        return [decode(0.3) for _ in indexes]


def train(trainer: Trainer) -> None:
    records = Records(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples")
    trainer.fit(loader(records, workers=2, batch=_BATCH, shuffle=True), trainer.compute(35))


def missing() -> str:
    return slow_disk.missing() if platform.machine() == "x86_64" else "system calls are numbered for x86_64"


SCENARIO = Scenario(
    Label("input-bound", "disk-io"), train, partial(slow_disk.throttle, bytes_per_s=_SLOW_BYTES_PER_S), slow_disk.file, needs=missing
)
