"""A flow solver that shares its field with an analysis beside it: the analysis takes a copy when it is free, the solver never waits for it.

Truth: healthy. Each eighth step the solver copies its field to shared memory if the analysis has let go of it, and posts a semaphore; the
analysis `pvbatch` then computes for 60 ms and writes an image. From some moment on a checkpoint of 16 MB goes to disk each fiftieth step,
by a thread. The GPU works nearly all the time (lost: 0.05); nobody is a victim or to blame.
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

_FIELD = """
enum { FIELD = 2 << 20 };
struct shared { sem_t full; _Atomic(int) free; char field[FIELD]; };

static struct shared *shared(void) {
    struct shared *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, open(in_folder("field"), O_RDWR), 0);
    require(at != MAP_FAILED, "mmap");
    return at;
}
"""
_NEKRS = (
    _FIELD
    + """
enum { STATE = 16 << 20 };
QUEUE(states, 1);
QUEUE(spare, 1);

static void *checkpoint(void *unused) {
    name_thread("nekrs_io");
    for (;;) {
        void *state = get(&states);
        int file = open(in_folder("channel0.f00001"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        require(write_all(file, state, STATE) && !fdatasync(file) && !close(file), "checkpoint");
        put(&spare, state);
    }
    return unused;
}

int main(void) {
    struct shared *to = shared();
    sem_init(&to->full, 1, 0);
    atomic_store(&to->free, 1);
    if (!fork()) {
        execl(in_folder("pvbatch"), "pvbatch", "--sym", "slices.py", NULL);
        _exit(1);
    }
    gpu_open(0, 1900 << 20);
    char *field = pinned(STATE);
    put(&spare, calloc(STATE, 1));
    run_thread(checkpoint, NULL);
    for (long number = 1;; number++) {
        for (int kernel = 0; kernel < 6; kernel++) gpu_launch(5);
        gpu_copy(field, FIELD, TO_HOST);
        gpu_wait();
        if (number % 8 == 0 && atomic_exchange(&to->free, 0)) {
            memcpy(to->field, field, FIELD);
            sem_post(&to->full);
        }
        if (number % 50 == 0 && raised("checkpoints")) put(&states, get(&spare));
        step();
    }
}
"""
)
_PVBATCH = (
    _FIELD
    + """
int main(void) {
    struct shared *from = shared();
    char *slice = calloc(FIELD, 1);
    end_with_parent();
    for (;;) {
        while (sem_wait(&from->full)) {}
        memcpy(slice, from->field, FIELD);
        atomic_store(&from->free, 1);
        burn_ms(60);
        int image = open(in_folder("slice.png"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        require(write_all(image, slice, 200 << 10) && !close(image), "image");
    }
}
"""
)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sst-") as field:
        field.truncate(3 << 20)
        (running.folder / "field").symlink_to(field.name)
        with native.built(running, nekrs=_NEKRS, pvbatch=_PVBATCH):
            yield


def train(_trainer: Trainer) -> None:
    native.become("nekrs --setup channel.par")


SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="checkpoints"), prepare, needs=native.missing)
