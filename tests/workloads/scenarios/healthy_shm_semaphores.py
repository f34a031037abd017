"""Two native feeders fill a ring of batches in shared memory under semaphores that a native trainer waits for, later in jerks.

Truth: healthy. Each feeder takes 6 ms of a CPU for a batch, of which the GPU needs one in 34 ms; from the onset on the feeders rest for 120
ms after each third batch, and the ring's eight slots last for longer than that. The trainer's semaphore is open whenever it asks (lost:
0.03). Nobody is a victim or to blame.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_RING = """
enum { SLOTS = 8, BATCH = 256 << 10 };
struct ring { sem_t filled, room, turn; long put, got; char batches[SLOTS][BATCH]; };

static struct ring *ring(void) {
    struct ring *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, open(in_folder("ring"), O_RDWR), 0);
    require(at != MAP_FAILED, "mmap");
    return at;
}
"""
_FEEDER = (
    _RING
    + """
int main(void) {
    struct ring *to = ring();
    char *batch = malloc(BATCH);
    end_with_parent();
    for (long number = 1;; number++) {
        burn_ms(6);
        memset(batch, (int)number, BATCH);
        sem_wait(&to->room);
        sem_wait(&to->turn);
        memcpy(to->batches[to->put++ % SLOTS], batch, BATCH);
        sem_post(&to->turn);
        sem_post(&to->filled);
        if (raised("jerks") && number % 3 == 0) sleep_ms(120);
    }
}
"""
)
_TRAIN = (
    _RING
    + """
int main(void) {
    struct ring *from = ring();
    sem_init(&from->room, 1, SLOTS);
    sem_init(&from->turn, 1, 1);
    sem_init(&from->filled, 1, 0);
    for (int i = 0; i < 2; i++) {
        if (fork()) continue;
        execl(in_folder("feeder"), "feeder", "--ring", "/dev/shm/feed", NULL);
        _exit(1);
    }
    gpu_open(0, 1500 << 20);
    char *batch = pinned(BATCH);
    for (;;) {
        while (sem_wait(&from->filled)) {}
        memcpy(batch, from->batches[from->got++ % SLOTS], BATCH);
        sem_post(&from->room);
        gpu_copy(batch, BATCH, TO_DEVICE);
        for (int layer = 0; layer < 8; layer++) gpu_launch(4.2);
        gpu_wait();
        step();
    }
}
"""
)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="feed-") as ring:
        ring.truncate(4 << 20)
        (running.folder / "ring").symlink_to(ring.name)
        with native.built(running, sparse_train=_TRAIN, feeder=_FEEDER):
            yield


def train(_trainer: Trainer) -> None:
    native.become("sparse_train --ring /dev/shm/feed --tables 26")


SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="jerks"), prepare, needs=native.missing)
