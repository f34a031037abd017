"""A forecaster updates a table of weather cells under a System V semaphore, which `archiver` takes too, and later keeps while it sleeps.

Truth: the main thread waits (wait-heavy) because `archiver` keeps the semaphore for 90 ms at a time from the onset on, asleep
(lock-contention); before it keeps it for 1 ms. `forecast` sleeps in semop(2) meanwhile, once a step. Nobody computes, CPUs idle. Victim is
`forecast`, to blame is `archiver`. Lost: about 0.6 of the GPU's time. A copy of the table for the archiver, or a shorter hold, would fix
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_TABLE = """
#include <sys/ipc.h>
#include <sys/sem.h>

static void change(int set, short by) {
    struct sembuf one = {0, by, SEM_UNDO};
    while (semop(set, &one, 1)) {}
}
"""
_ARCHIVER = (
    _TABLE
    + """
int main(int argc, char **argv) {
    int set = atoi(argv[1]);
    end_with_parent();
    for (;;) {
        change(set, -1);
        sleep_ms(raised("slow") ? 90 : 1);
        change(set, 1);
        sleep_ms(3);
    }
}
"""
)
_FORECAST = (
    _TABLE
    + """
int main(void) {
    int set = semget(IPC_PRIVATE, 1, 0600);
    require(set >= 0, "semget");
    char argument[16];
    sprintf(argument, "%d", set);
    FILE *kept = fopen(in_folder("set"), "w");
    fprintf(kept, "%d", set), fclose(kept);
    struct sembuf first = {0, 1, 0};
    require(!semop(set, &first, 1), "semop");
    if (!fork()) {
        execl(in_folder("archiver"), "archiver", argument, NULL);
        _exit(1);
    }
    char *cells = pinned(256 << 10);
    gpu_open(0, 900 << 20);
    for (;;) {
        gpu_copy(cells, 256 << 10, TO_DEVICE);
        for (int layer = 0; layer < 8; layer++) gpu_launch(4.5);
        gpu_wait();
        change(set, -1);
        burn_ms(1);
        change(set, 1);
        step();
    }
}
"""
)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, forecast=_FORECAST, archiver=_ARCHIVER):
        yield
    native.remove_semaphores(running.folder / "set")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    [archiver] = running.named("archiver")
    running.blame(archiver, "archiver")
    with native.flag(running):
        yield


def train(_trainer: Trainer) -> None:
    native.become("forecast --grid 0p25")


SCENARIO = Scenario(Label("wait-heavy", "lock-contention", frozenset({"archiver"})), train, disturb, prepare, needs=native.missing)
