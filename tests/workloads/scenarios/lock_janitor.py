"""Native processes share a table of tracks under one process-shared mutex: ingest, the tracker on the GPU, and a janitor that tidies it up.

Truth: the GPU has nothing to do most of the time (input-bound) because `janitor`, from some moment on, keeps the mutex while a remote store
confirms what it has archived, 420 of each 460 ms, asleep (lock-contention); the ingest processes and the tracker wait for the mutex in
futex(2). CPUs idle. Victims are `tracker` and both `ingest`, the culprit is `janitor`. Lost: 0.75 of the GPU's time or more. A copy made
under the mutex and sent without it would fix it; more ingest processes would not.
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
enum { TRACK = 64 << 10 };
struct table { pthread_mutex_t lock; pthread_cond_t changed; int ready; char tracks[8][TRACK]; };

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
        burn_ms(5);
        pthread_mutex_lock(&to->lock);
        while (to->ready == 8) pthread_cond_wait(&to->changed, &to->lock);
        memcpy(to->tracks[to->ready++], track, TRACK);
        pthread_cond_broadcast(&to->changed);
        pthread_mutex_unlock(&to->lock);
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
        if (raised("archive")) sleep_ms(420);
        pthread_mutex_unlock(&of->lock);
        sleep_ms(40);
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
    pthread_condattr_t condition;
    pthread_mutexattr_init(&mutex), pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_condattr_init(&condition), pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&from->lock, &mutex), pthread_cond_init(&from->changed, &condition);
    const char *others[] = {"ingest", "ingest", "janitor"};
    for (int i = 0; i < 3; i++) {
        if (fork()) continue;
        execl(in_folder(others[i]), others[i], "--table", "/dev/shm/tracks", NULL);
        _exit(1);
    }
    gpu_open(0, 600 << 20);
    char *tracks = pinned(2 * TRACK);
    for (;;) {
        pthread_mutex_lock(&from->lock);
        while (from->ready < 2) pthread_cond_wait(&from->changed, &from->lock);
        from->ready -= 2;
        memcpy(tracks, from->tracks[from->ready], 2 * TRACK);
        pthread_cond_broadcast(&from->changed);
        pthread_mutex_unlock(&from->lock);
        gpu_copy(tracks, 2 * TRACK, TO_DEVICE);
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
