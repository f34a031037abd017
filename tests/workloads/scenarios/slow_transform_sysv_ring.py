"""A solver takes meshes from a System V message ring: `mesher` fills it under two semaphores, and later refines each mesh much more.

Truth: the GPU starves (input-bound) because `mesher`, one process with one thread, runs on a full core for 58 ms a mesh from the onset on
(slow-transform); before it took 9 ms. `cfd_solve` sleeps in semop(2) until it posts. CPUs idle beside it, no disk or network takes part.
Victim is `cfd_solve`, nobody is to blame. Lost: about 0.6 of the GPU's time. More meshers, or coarser meshes, would fix it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RING = """
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/shm.h>
enum { SLOTS = 2, MESH = 512 << 10, FULL = 0, ROOM = 1 };

static void change(int set, unsigned short number, short by) {
    struct sembuf one = {number, by, 0};
    while (semop(set, &one, 1)) {}
}
"""
_MESHER = (
    _RING
    + """
int main(int argc, char **argv) {
    int set = atoi(argv[1]);
    char *slots = shmat(atoi(argv[2]), NULL, 0);
    end_with_parent();
    for (long number = 0;; number++) {
        burn_ms(raised("slow") ? 58 : 9);
        change(set, ROOM, -1);
        memset(slots + number % SLOTS * MESH, (int)number, MESH);
        change(set, FULL, 1);
    }
}
"""
)
_SOLVE = (
    _RING
    + """
int main(void) {
    int set = semget(IPC_PRIVATE, 2, 0600), memory = shmget(IPC_PRIVATE, SLOTS * MESH, 0600);
    require(set >= 0 && memory >= 0, "semget");
    char *slots = shmat(memory, NULL, 0), argument[2][16];
    sprintf(argument[0], "%d", set), sprintf(argument[1], "%d", memory);
    FILE *kept = fopen(in_folder("set"), "w");
    fprintf(kept, "%d", set), fclose(kept);
    change(set, ROOM, SLOTS);
    if (!fork()) {
        execl(in_folder("mesher"), "mesher", argument[0], argument[1], NULL);
        _exit(1);
    }
    char *mesh = pinned(MESH);
    gpu_open(0, 1200 << 20);
    for (long number = 0;; number++) {
        change(set, FULL, -1);
        if (!number) shmctl(memory, IPC_RMID, NULL);
        memcpy(mesh, slots + number % SLOTS * MESH, MESH);
        change(set, ROOM, 1);
        gpu_copy(mesh, MESH, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(4);
        gpu_wait();
        step();
    }
}
"""
)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, cfd_solve=_SOLVE, mesher=_MESHER):
        yield
    native.remove_semaphores(running.folder / "set")


def train(_trainer: Trainer) -> None:
    native.become("cfd_solve --case wing")


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare, needs=native.missing)
