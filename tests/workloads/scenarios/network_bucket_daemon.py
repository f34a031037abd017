"""A native program reads shards from a bucket that a FUSE daemon mounts; the daemon fetches each block from a store that becomes slow.

Truth: the GPU starves (input-bound) because the store sends 10 MB/s from the onset on (network-io): the reading thread of `dino_train`
waits for the daemon `s3fs`, which sleeps in recv(2) at the store's socket and computes next to nothing. No disk and no page cache takes
part: reads are direct. Victims are `dino_train` and `s3fs`, nobody is to blame. Lost: 0.75 of the GPU's time. A nearer store, larger reads
ahead, or a copy on the disk would fix it; a faster disk or more memory would not.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.workloads import native, program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_BLOCK, _BLOCKS = 128 << 10, 1 << 14
_SLOW_BYTES_PER_S = 10e6
_LOOKUP, _GETATTR, _OPEN, _READ, _INIT = 1, 3, 14, 15, 26
_ROOT, _FILE = 1, 2
_READ_ONLY, _DETACH, _DIRECT_IO, _ENOSYS = 1, 2, 1, 38
_DINO_TRAIN = """
enum { BLOCK = 128 << 10, BATCH = 8 * BLOCK };
QUEUE(spare, 3);
QUEUE(batches, 2);

static void *read_shards(void *unused) {
    int shard = open(in_folder("bucket/shard.bin"), O_RDONLY);
    name_thread("shard_reader");
    for (off_t at = 0;; at += BATCH) {
        char *batch = get(&spare);
        for (int block = 0; block < 8; block++)
            require(pread(shard, batch + block * BLOCK, BLOCK, (at + block * BLOCK) % (1 << 30)) == BLOCK, "pread");
        put(&batches, batch);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 1600 << 20);
    for (int i = 0; i < 3; i++) put(&spare, pinned(BATCH));
    run_thread(read_shards, NULL);
    for (;;) {
        void *batch = get(&batches);
        gpu_copy(batch, BATCH, TO_DEVICE);
        for (int layer = 0; layer < 5; layer++) gpu_launch(5);
        gpu_wait();
        put(&spare, batch);
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("dino_train --shards bucket/ --arch vit_l14")


def store() -> None:
    """It sends as many bytes as it is asked for."""
    listener = socket.create_server(("127.0.0.1", 0))
    program.called("minio")
    print(listener.getsockname()[1], flush=True)
    daemon, _ = listener.accept()
    while asked := daemon.recv(4, socket.MSG_WAITALL):
        (count,) = struct.unpack("<I", asked)
        if program.raised("slow"):
            time.sleep(count / _SLOW_BYTES_PER_S)
        daemon.sendall(bytes(count))


def mount(bucket: str) -> None:
    """A read-only FUSE file system with one file, each block of which comes from the store."""
    device, connection = os.open("/dev/fuse", os.O_RDWR), program.service()
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if ctypes.CDLL(None).mount(b"s3fs", bucket.encode(), b"fuse.s3fs", ctypes.c_ulong(_READ_ONLY), options):
        raise OSError("cannot mount")
    program.called("s3fs")
    print("mounted", flush=True)
    while True:
        request = os.read(device, 1 << 18)
        _length, code, unique, node = struct.unpack_from("IIQQ", request)
        error, answer = 0, b""
        if code == _INIT:
            answer = struct.pack("4I2H2I36x", 7, 31, 0, 0, 12, 9, 1 << 17, 1)
        elif code == _LOOKUP:
            answer = struct.pack("4Q8x", _FILE, 1, 60, 60) + _attributes(_FILE)
        elif code == _GETATTR:
            answer = struct.pack("Q8x", 60) + _attributes(node)
        elif code == _OPEN:
            answer = struct.pack("QI4x", 0, _DIRECT_IO)
        elif code == _READ:
            (count,) = struct.unpack_from("I", request, 56)
            connection.sendall(struct.pack("<I", count))
            answer = program.receive(connection, count)
        else:
            error = -_ENOSYS
        with suppress(FileNotFoundError):  # nobody waits for an answer to this request
            os.write(device, struct.pack("IiQ", 16 + len(answer), error, unique) + answer)


def _attributes(node: int) -> bytes:
    """struct fuse_attr."""
    mode, size = (0o40755, 0) if node == _ROOT else (0o100444, _BLOCKS * _BLOCK)
    return struct.pack("3Q36x2I12xI4x", node, size, size >> 9, mode, 1, 1 << 17)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    bucket = running.folder / "bucket"
    bucket.mkdir()
    with native.built(running, dino_train=_DINO_TRAIN), program.serving(running, store):
        try:
            with program.serving(running, mount, bucket):
                yield
        finally:
            ctypes.CDLL(None).umount2(str(bucket).encode(), _DETACH)


def missing() -> str:
    fuse = os.geteuid() == 0 and Path("/dev/fuse").exists()
    return native.missing() or ("" if fuse else "no root or no /dev/fuse")


SCENARIO = Scenario(Label("input-bound", "network-io"), train, native.flag, prepare, needs=missing)
