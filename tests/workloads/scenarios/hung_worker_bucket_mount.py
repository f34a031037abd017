"""Samples come from a bucket mounted by FUSE, whose daemon loses one read: the worker that asked waits for the answer for ever."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

SAMPLE_BYTES, SAMPLES = 96 << 10, 1 << 16
LOSS_EVERY = 4
LOOKUP, GETATTR, OPEN, READ, INIT = 1, 3, 14, 15, 26
ROOT, FILE = 1, 2
MOUNT_READ_ONLY, DETACH, DIRECT_IO, ENOSYS = 1, 2, 1, 38


class Tokens(Dataset[torch.Tensor]):
    """Fixed stretches of one file; each worker opens it for itself."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = -1

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file < 0:
            self.file = os.open(self.path, os.O_RDONLY)
        raw = bytearray(os.pread(self.file, SAMPLE_BYTES, index * SAMPLE_BYTES))
        return torch.frombuffer(raw, dtype=torch.int16).to(torch.int32)


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(2 << 20, pinned=True)
        for length_ms in (60, 115, 10):
            gpu.launch(length_ms)
        if trainer.steps % LOSS_EVERY == 0:
            gpu.synchronize()

    path = os.environ["GPUTOP_WORKLOAD_FOLDER"] + "/bucket/tokens.bin"
    trainer.fit(loader(Tokens(path), workers=4, batch=10, shuffle=True), step)


def attributes(node: int) -> bytes:
    """struct fuse_attr."""
    mode, size = (0o40755, 0) if node == ROOT else (0o100444, SAMPLES * SAMPLE_BYTES)
    return struct.pack("3Q36x2I12xI4x", node, size, size >> 9, mode, 1, 1 << 16)


def serve(bucket: str, lose_one: Path) -> None:
    """A read-only FUSE file system with one file; the first read after ``lose_one`` appears is never answered."""
    libc, device = ctypes.CDLL(None), os.open("/dev/fuse", os.O_RDWR)
    libc.prctl(1, signal.SIGKILL)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"bucket", bucket.encode(), b"fuse.bucket", ctypes.c_ulong(MOUNT_READ_ONLY), options):
        sys.exit("cannot mount")
    print("mounted", flush=True)
    content, lost = os.urandom(SAMPLE_BYTES), False
    while True:
        request = os.read(device, 1 << 17)
        _length, code, unique, node = struct.unpack_from("IIQQ", request)
        if code == READ and not lost and lose_one.exists():
            lost = True
            continue
        error, answer = 0, b""
        if code == INIT:
            answer = struct.pack("4I2H2I36x", 7, 31, 0, 0, 12, 9, 1 << 16, 1)
        elif code == LOOKUP:
            answer = struct.pack("4Q8x", FILE, 1, 60, 60) + attributes(FILE)
        elif code == GETATTR:
            answer = struct.pack("Q8x", 60) + attributes(node)
        elif code == OPEN:
            answer = struct.pack("QI4x", 0, DIRECT_IO)
        elif code == READ:
            answer = content[: struct.unpack_from("QQI", request, 40)[2]]
        else:
            error = -ENOSYS
        with suppress(FileNotFoundError):  # nobody waits for an answer to this request
            os.write(device, struct.pack("IiQ", 16 + len(answer), error, unique) + answer)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    bucket = running.folder / "bucket"
    bucket.mkdir()
    command = [sys.executable, "-m", __name__, str(bucket), str(running.folder / "lose")]
    with running.child(command, stdout=-1) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        try:
            yield
        finally:
            ctypes.CDLL(None).umount2(str(bucket).encode(), DETACH)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "lose").touch()
    yield


def missing() -> str:
    """Why nothing can be mounted here, empty if it can."""
    return "" if os.geteuid() == 0 and Path("/dev/fuse").exists() else "no root or no /dev/fuse"


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb, prepare, needs=missing)

if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
