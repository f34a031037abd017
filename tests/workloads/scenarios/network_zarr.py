"""Volumes in Zarr chunks behind HTTPS: a random crop takes eight GETs, one after the other, and the bucket's link becomes narrow."""

from __future__ import annotations

import os
import random
import socket
import ssl
import zlib
from contextlib import AbstractContextManager
from http.client import HTTPSConnection

import torch

from tests.workloads import web
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CHUNK_BYTES, _CHUNKS, _ACCUMULATE = 256 << 10, 8, 4
_SO_MAX_PACING_RATE, _SLOW_BYTES_PER_S = 47, 3_000_000
_NO_CERTIFICATE = "AECDH-AES256-SHA:@SECLEVEL=0"


def tls(side: int) -> ssl.SSLContext:
    """What encrypts as any other HTTPS does, but needs no certificate."""
    context = ssl.SSLContext(side)
    if side == ssl.PROTOCOL_TLS_CLIENT:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_NO_CERTIFICATE)
    return context


class Volumes(Images):
    """Crops of 64×64×256 voxels; each worker keeps its connection, whose reads have a timeout as botocore's have."""

    bucket: HTTPSConnection | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat([self._chunk(index * 8191 + random.randrange(512)) for _ in range(_CHUNKS)])

    def _chunk(self, number: int) -> torch.Tensor:
        if self.bucket is None:
            self.bucket = HTTPSConnection("127.0.0.1", int(os.environ["GPUTOP_WEB_PORT"]), timeout=60, context=tls(ssl.PROTOCOL_TLS_CLIENT))
        self.bucket.request("GET", f"/scans.zarr/ct/{number >> 8}.{number >> 4 & 15}.{number & 15}")
        raw = bytearray(zlib.decompress(self.bucket.getresponse().read(), bufsize=_CHUNK_BYTES))
        return torch.frombuffer(raw, dtype=torch.int16).reshape(64, 64, 32)


def train(trainer: Trainer) -> None:
    def step(_batch: object) -> None:
        trainer.gpu.copy_in(4 << 20, pinned=True)
        for _ in range(7):
            trainer.gpu.launch(10)
        if trainer.steps % _ACCUMULATE == _ACCUMULATE - 1:
            trainer.gpu.launch(5)
            trainer.gpu.synchronize()

    trainer.fit(loader(Volumes(0, length=4000), workers=3, start="spawn", batch=2, shuffle=True, prefetch_factor=3), step)


def prepare(running: Running) -> AbstractContextManager[None]:
    chunk = zlib.compress(os.urandom(_CHUNK_BYTES * 3 // 8) + bytes(_CHUNK_BYTES * 5 // 8), 1)
    context, slow_flag = tls(ssl.PROTOCOL_TLS_SERVER), running.folder / "slow"

    class Bucket(web.Handler):
        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def get(self) -> None:
            if slow_flag.exists():  # the kernel sends no faster than this
                self.connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _SLOW_BYTES_PER_S)
            self.answer(len(chunk))
            self.wfile.write(chunk)

    return web.served(running, Bucket)


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare)
