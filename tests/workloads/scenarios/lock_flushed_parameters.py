"""One native program trains under a mutex in its own memory that its flusher thread takes, too, to write the parameters away.

Truth: the GPU has nothing to do most of the time (wait-heavy) because the thread `flush`, from some moment on, keeps the mutex while a
remote store confirms what it has sent, 400 of each 420 ms, asleep (lock-contention). The main thread waits for the mutex in futex(2). CPUs
idle, no other process takes part, and the victim is `tune`. Lost: 0.9 of the GPU's time. A copy made under the mutex and sent without it
would fix it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_TUNE = """
enum { PARAMETERS = 1 << 18 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char parameters[PARAMETERS];

static void *flush(void *none) {
    pthread_setname_np(pthread_self(), "flush");
    for (;;) {
        pthread_mutex_lock(&lock);
        burn_ms(0.5);
        if (raised("remote")) sleep_ms(400);
        pthread_mutex_unlock(&lock);
        sleep_ms(20);
    }
    return none;
}

int main(void) {
    gpu_open(0, 600 << 20);
    char *staged = pinned(PARAMETERS);
    pthread_t flusher;
    require(!pthread_create(&flusher, NULL, flush, NULL), "pthread_create");
    for (;;) {
        pthread_mutex_lock(&lock);
        memcpy(staged, parameters, PARAMETERS);
        pthread_mutex_unlock(&lock);
        gpu_copy(staged, PARAMETERS, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(5);
        gpu_wait();
        step();
        if (raised("remote")) sleep_ms(1);
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("tune --parameters 65536")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, tune=_TUNE):
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with native.flag(running, "remote"):
        yield


SCENARIO = Scenario(Label("wait-heavy", "lock-contention"), train, disturb, prepare, needs=native.missing)
