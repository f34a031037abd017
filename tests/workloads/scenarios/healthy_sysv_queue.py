"""A renderer takes scenes that `tessellate` puts into System V shared memory ahead of it, eight deep, and later in bursts.

Truth: healthy. A scene takes 8 ms of a CPU and the GPU 36 ms; from the onset on `tessellate` sleeps for 150 ms after each fifth scene,
which the eight slots outlast. Both wait in semop(2), the feeder nearly all the time for room. Nobody is a victim or to blame. Lost: 0.03.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_RING = """
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/shm.h>
enum { SLOTS = 8, SCENE = 256 << 10, FULL = 0, ROOM = 1 };

static void change(int set, unsigned short number, short by) {
    struct sembuf one = {number, by, 0};
    while (semop(set, &one, 1)) {}
}
"""
_TESSELLATE = (
    _RING
    + """
int main(int argc, char **argv) {
    int set = atoi(argv[1]);
    char *slots = shmat(atoi(argv[2]), NULL, 0);
    end_with_parent();
    for (long number = 0;; number++) {
        burn_ms(8);
        change(set, ROOM, -1);
        memset(slots + number % SLOTS * SCENE, (int)number, SCENE);
        change(set, FULL, 1);
        if (raised("bursts") && number % 5 == 0) sleep_ms(150);
    }
}
"""
)
_RENDER = (
    _RING
    + """
int main(void) {
    int set = semget(IPC_PRIVATE, 2, 0600), memory = shmget(IPC_PRIVATE, SLOTS * SCENE, 0600);
    require(set >= 0 && memory >= 0, "semget");
    char *slots = shmat(memory, NULL, 0), argument[2][16];
    sprintf(argument[0], "%d", set), sprintf(argument[1], "%d", memory);
    FILE *kept = fopen(in_folder("set"), "w");
    fprintf(kept, "%d", set), fclose(kept);
    change(set, ROOM, SLOTS);
    if (!fork()) {
        execl(in_folder("tessellate"), "tessellate", argument[0], argument[1], NULL);
        _exit(1);
    }
    char *scene = pinned(SCENE);
    gpu_open(0, 1800 << 20);
    for (long number = 0;; number++) {
        change(set, FULL, -1);
        if (!number) shmctl(memory, IPC_RMID, NULL);
        memcpy(scene, slots + number % SLOTS * SCENE, SCENE);
        change(set, ROOM, 1);
        gpu_copy(scene, SCENE, TO_DEVICE);
        for (int pass = 0; pass < 9; pass++) gpu_launch(4);
        gpu_wait();
        step();
    }
}
"""
)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, nerf_render=_RENDER, tessellate=_TESSELLATE):
        yield
    native.remove_semaphores(running.folder / "set")


def train(_trainer: Trainer) -> None:
    native.become("nerf_render --scenes urban")


SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="bursts"), prepare, needs=native.missing)
