"""Ray-like learning from objects of another node: `raylet` pulls them into shared memory, `ray_learner` maps them and has the GPU.

Truth: the GPU starves (input-bound) because the other node's link becomes narrow, 10 MB/s for each of two pulls (network-io). The threads
`pull_manager` of `raylet` sleep in recv(2) at the sockets of that node, `ray_learner` for an object in futex(2); neither computes anything
to speak of, no disk takes part, and CPUs idle. Victims are `ray_learner` and `raylet`, nobody here is to blame. Lost: 0.66 of the GPU's
time. Objects made on this node, more pulls at a time, or smaller ones would fix it; more memory for the object store would not.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.workloads import native, program
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_OBJECT_BYTES = 2 << 20
_SLOW_BYTES_PER_S = 10e6
_PLASMA = """
#include "tcp.h"
enum { OBJECT = 2 << 20, SLOTS = 4, PULLS = 2 };
struct plasma { sem_t sealed, room; _Atomic(long) created, got; _Atomic(int) ready[SLOTS]; char objects[SLOTS][OBJECT]; };

static struct plasma *plasma(void) {
    struct plasma *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, open(in_folder("plasma"), O_RDWR), 0);
    require(at != MAP_FAILED, "mmap");
    return at;
}
"""
_RAYLET = (
    _PLASMA
    + """
static struct plasma *to;

static void *pull(void *unused) {
    int node = tcp_connected(atoi(getenv("GPUTOP_SERVICE_PORT")));
    name_thread("pull_manager");
    for (;;) {
        while (sem_wait(&to->room)) {}
        int slot = (int)(atomic_fetch_add(&to->created, 1) % SLOTS);
        require(write_all(node, "?", 1) && read_all(node, to->objects[slot], OBJECT), "pull");
        burn_ms(1);  /* a checksum */
        atomic_store(&to->ready[slot], 1);
        sem_post(&to->sealed);
    }
    return unused;
}

int main(void) {
    end_with_parent();
    to = plasma();
    for (int i = 1; i < PULLS; i++) run_thread(pull, NULL);
    pull(NULL);
}
"""
)
_RAY_LEARNER = (
    _PLASMA
    + """
int main(void) {
    struct plasma *from = plasma();
    sem_init(&from->sealed, 1, 0), sem_init(&from->room, 1, SLOTS);
    if (!fork()) {
        setsid();
        execl(in_folder("raylet"), "raylet", "--node-ip-address=10.0.0.7", "--object_store_memory=8589934592", NULL);
        _exit(1);
    }
    char *object = pinned(OBJECT);
    gpu_open(0, 1500 << 20);
    for (;;) {
        int slot = (int)(atomic_fetch_add(&from->got, 1) % SLOTS);
        while (!atomic_exchange(&from->ready[slot], 0)) while (sem_wait(&from->sealed)) {}
        memcpy(object, from->objects[slot], OBJECT);
        sem_post(&from->room);
        gpu_copy(object, OBJECT, TO_DEVICE);
        for (int layer = 0; layer < 7; layer++) gpu_launch(5);
        gpu_wait();
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("ray_learner --shards remote")


def node() -> None:
    """The object manager of the other node."""
    listener = socket.create_server(("127.0.0.1", 0))
    program.called("object_manager")
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=_answer, args=(listener.accept()[0],), daemon=True).start()


def _answer(peer: socket.socket) -> None:
    with suppress(ConnectionError):
        _send_objects(peer)


def _send_objects(peer: socket.socket) -> None:
    chunk = bytes(64 << 10)
    while peer.recv(1):
        began = time.monotonic()
        for sent in range(len(chunk), _OBJECT_BYTES + 1, len(chunk)):
            peer.sendall(chunk)
            if program.raised("slow"):
                time.sleep(max(0.0, began + sent / _SLOW_BYTES_PER_S - time.monotonic()))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="plasma-") as store:
        store.truncate(9 << 20)
        (running.folder / "plasma").symlink_to(store.name)
        with native.built(running, raylet=_RAYLET, ray_learner=_RAY_LEARNER), program.serving(running, node):
            yield


SCENARIO = Scenario(Label("input-bound", "network-io"), train, native.flag, prepare, needs=native.missing)
