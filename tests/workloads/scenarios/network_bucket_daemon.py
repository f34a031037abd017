"""A native program reads shards from a bucket that a FUSE daemon mounts; the daemon fetches each block from a store that becomes slow.

Truth: the GPU starves (input-bound) because the store sends 10 MB/s from the onset on (network-io): the reading thread of `dino_train`
waits for the daemon `s3fs`, which sleeps in recv(2) at the store's socket and computes next to nothing. No disk and no page cache takes
part: reads are direct. Victims are `dino_train` and `s3fs`, nobody is to blame. Lost: 0.75 of the GPU's time. A nearer store, larger reads
ahead, or a copy on the disk would fix it; a faster disk or more memory would not.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import fuse, native, program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_SLOW_BYTES_PER_S = 10e6
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
    """Each block comes from the store."""
    connection = program.service()

    def read(count: int) -> bytes:
        connection.sendall(struct.pack("<I", count))
        return program.receive(connection, count)

    fuse.serve(bucket, "s3fs", read)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, dino_train=_DINO_TRAIN), program.serving(running, store), fuse.mounted(running, mount):
        yield


SCENARIO = Scenario(Label("input-bound", "network-io"), train, native.flag, prepare, needs=fuse.missing)
