"""A basecaller takes raw signals from a ring in shared memory; the reader that unpacks them is a service with a quota of its own.

Truth: the GPU starves (input-bound) because `pod5_reader`, which needs 12 ms of CPU for a chunk, stands still at its group's quota most of
each period from some moment on (cgroup-throttle). `basecaller` is in no such group and waits at the ring's semaphore; the host's CPUs idle.
The victims are both, nobody is to blame. Lost: 0.7 of the GPU's time. A larger quota of the reader's service would fix it; a second reader
in the same service, a larger ring or a faster GPU would not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import cgroup, native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_QUOTA_CPUS = 0.15
_RING = """
enum { CHUNK = 256 << 10, SLOTS = 4 };
struct ring { sem_t filled, room; char chunks[SLOTS][CHUNK]; };

static struct ring *ring(void) {
    struct ring *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, open(in_folder("ring"), O_RDWR), 0);
    require(at != MAP_FAILED, "mmap");
    return at;
}
"""
_POD5_READER = (
    _RING
    + """
int main(void) {
    struct ring *to = ring();
    char *chunk = calloc(CHUNK, 1);
    end_with_parent();
    sem_init(&to->filled, 1, 0), sem_init(&to->room, 1, SLOTS);
    close(open(in_folder("ring.made"), O_CREAT | O_WRONLY, 0600));
    for (long number = 0;; number++) {
        burn_ms(12);  /* unpack */
        while (sem_wait(&to->room)) {}
        memcpy(to->chunks[number % SLOTS], chunk, CHUNK);
        sem_post(&to->filled);
    }
}
"""
)
_BASECALLER = (
    _RING
    + """
int main(void) {
    while (!raised("ring.made")) sleep_ms(20);
    struct ring *from = ring();
    gpu_open(0, 1200 << 20);
    char *signal = pinned(CHUNK);
    for (long number = 0;; number++) {
        while (sem_wait(&from->filled)) {}
        memcpy(signal, from->chunks[number % SLOTS], CHUNK);
        sem_post(&from->room);
        gpu_copy(signal, CHUNK, TO_DEVICE);
        for (int layer = 0; layer < 5; layer++) gpu_launch(5);
        gpu_wait();
        burn_ms(0.5);  /* beam search is on the GPU; this writes the bases down */
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("basecaller sup --ring /dev/shm/pod5 --device cuda:0")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="pod5-") as ring, cgroup.group("cpu", running.name) as group:
        ring.truncate(2 << 20)
        (running.folder / "ring").symlink_to(ring.name)
        (running.folder / "group").symlink_to(group)
        reader = native.beside(running, "pod5_reader --recursive /data/run7 --ring /dev/shm/pod5", group)
        with native.built(running, basecaller=_BASECALLER, pod5_reader=_POD5_READER), reader:
            yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.limited_cpu((running.folder / "group").resolve(), _QUOTA_CPUS):
        yield


def missing() -> str:
    return native.missing() or cgroup.missing("cpu")


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, prepare, needs=missing)
