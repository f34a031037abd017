"""A speech model is fed by a puller that streams shards from another node all the time, just a little faster than the model needs them.

Truth: healthy. The link carries 30 MB/s, the model needs 24 MB/s; data arrive at `shard_pull` nearly without a pause, and it waits for room
in the ring the rest of the time. From the onset on the link carries 27 MB/s, which is still enough. Nobody is a victim or to blame. Lost:
0.03.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from tests.workloads import native, program
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_SHARD_BYTES = 1 << 20
_RING = """
#include "tcp.h"
enum { SHARD = 1 << 20, SLOTS = 6 };
struct ring { sem_t filled, room; char shards[SLOTS][SHARD]; };

static struct ring *ring(void) {
    struct ring *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, open(in_folder("ring"), O_RDWR), 0);
    require(at != MAP_FAILED, "mmap");
    return at;
}
"""
_PULL = (
    _RING
    + """
int main(void) {
    struct ring *to = ring();
    end_with_parent();
    int node = tcp_connected(atoi(getenv("GPUTOP_SERVICE_PORT")));
    for (long number = 0;; number++) {
        while (sem_wait(&to->room)) {}
        require(write_all(node, "?", 1) && read_all(node, to->shards[number % SLOTS], SHARD), "pull");
        sem_post(&to->filled);
    }
}
"""
)
_ASR = (
    _RING
    + """
int main(void) {
    struct ring *from = ring();
    sem_init(&from->filled, 1, 0), sem_init(&from->room, 1, SLOTS);
    if (!fork()) {
        execl(in_folder("shard_pull"), "shard_pull", "--from", "10.0.0.9", NULL);
        _exit(1);
    }
    char *shard = pinned(SHARD);
    gpu_open(0, 1300 << 20);
    for (long number = 0;; number++) {
        while (sem_wait(&from->filled)) {}
        memcpy(shard, from->shards[number % SLOTS], SHARD);
        sem_post(&from->room);
        gpu_copy(shard, SHARD, TO_DEVICE);
        for (int layer = 0; layer < 10; layer++) gpu_launch(4.2);
        gpu_wait();
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("asr_train --manifest remote")


def node() -> None:
    """The other node."""
    listener = socket.create_server(("127.0.0.1", 0))
    program.called("shard_node")
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=_answer, args=(listener.accept()[0],), daemon=True).start()


def _answer(peer: socket.socket) -> None:
    chunk = bytes(32 << 10)
    with suppress(ConnectionError):
        while peer.recv(1):
            began, rate = time.monotonic(), 27e6 if program.raised("narrower") else 30e6
            for sent in range(len(chunk), _SHARD_BYTES + 1, len(chunk)):
                peer.sendall(chunk)
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="asr-") as ring:
        ring.truncate(8 << 20)
        (running.folder / "ring").symlink_to(ring.name)
        with native.built(running, asr_train=_ASR, shard_pull=_PULL), program.serving(running, node):
            yield


SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="narrower"), prepare, needs=native.missing)
