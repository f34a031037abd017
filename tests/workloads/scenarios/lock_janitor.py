"""Two native programs ingest tracks under one mutex that a third, a janitor, takes too; a fourth has the GPU and waits for tracks.

Truth: the GPU has nothing to do most of the time (input-bound) because `janitor`, from some moment on, keeps the mutex while a remote store
confirms what it has archived, 600 of each 620 ms, asleep (lock-contention). Both `ingest` wait for the mutex in futex(2), and the tracker
for a semaphore that they post when a track is there. CPUs idle. Victims are `tracker` and both `ingest`, the culprit is `janitor`. Lost:
0.7 of the GPU's time. A copy made under the mutex and sent without it would fix it; more ingest processes would not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_TABLE = """
enum { TRACK = 128 << 10, SLOTS = 4 };
struct table { pthread_mutex_t lock; sem_t filled, room; _Atomic(long) put, got; char tracks[SLOTS][TRACK]; };

static struct table *table(void) {
    struct table *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, open(in_folder("table"), O_RDWR), 0);
    require(at != MAP_FAILED, "mmap");
    return at;
}
"""
_INGEST = (
    _TABLE
    + """
int main(void) {
    struct table *to = table();
    char *track = calloc(TRACK, 1);
    end_with_parent();
    for (;;) {
        pthread_mutex_lock(&to->lock);
        burn_ms(0.5);  /* associate */
        pthread_mutex_unlock(&to->lock);
        burn_ms(6);
        while (sem_wait(&to->room)) {}
        memcpy(to->tracks[atomic_fetch_add(&to->put, 1) % SLOTS], track, TRACK);
        sem_post(&to->filled);
    }
}
"""
)
_JANITOR = (
    _TABLE
    + """
int main(void) {
    struct table *of = table();
    end_with_parent();
    for (;;) {
        pthread_mutex_lock(&of->lock);
        burn_ms(0.5);
        if (raised("archive")) sleep_ms(600);
        pthread_mutex_unlock(&of->lock);
        sleep_ms(20);
    }
}
"""
)
_TRACKER = (
    _TABLE
    + """
int main(void) {
    struct table *from = table();
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex), pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&from->lock, &mutex);
    sem_init(&from->filled, 1, 0), sem_init(&from->room, 1, SLOTS);
    const char *others[] = {"ingest", "ingest", "janitor"};
    for (int i = 0; i < 3; i++) {
        if (fork()) continue;
        execl(in_folder(others[i]), others[i], "--table", "/dev/shm/tracks", NULL);
        _exit(1);
    }
    gpu_open(0, 600 << 20);
    char *tracks = pinned(TRACK);
    for (;;) {
        while (sem_wait(&from->filled)) {}
        memcpy(tracks, from->tracks[from->got++ % SLOTS], TRACK);
        sem_post(&from->room);
        gpu_copy(tracks, TRACK, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(5);
        gpu_wait();
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("tracker --table /dev/shm/tracks --sensors 2")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="tracks-") as table:
        table.truncate(1 << 20)
        (running.folder / "table").symlink_to(table.name)
        with native.built(running, tracker=_TRACKER, ingest=_INGEST, janitor=_JANITOR):
            yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    [janitor] = running.named("janitor")
    running.blame(janitor, "janitor")
    with native.flag(running, "archive"):
        yield
    running.account()


SCENARIO = Scenario(Label("input-bound", "lock-contention", frozenset({"janitor"})), train, disturb, prepare, needs=native.missing)
