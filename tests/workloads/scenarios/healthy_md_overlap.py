"""Molecular dynamics with a part on the CPU: bonded forces on two threads while the GPU does the rest, a trajectory frame now and then.

Truth: healthy. In a step of 26 ms the GPU works 24 ms on nonbonded forces; the main thread and a second one take 5 ms each for bonds in
that time and meet at a barrier, and only the integration (1 ms) has the GPU wait (lost: 0.07). A thread of its own writes each thirtieth
frame to disk, from some moment on each tenth. Nobody is a victim or to blame.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_NAMD = """
enum { ATOMS = 3 << 20 };
QUEUE(frames, 2);
QUEUE(spare, 2);
static pthread_barrier_t begin, end;

static void *bonds(void *unused) {
    name_thread("CkThread-1");
    for (;;) {
        pthread_barrier_wait(&begin);
        burn_ms(5);
        pthread_barrier_wait(&end);
    }
    return unused;
}

static void *output(void *unused) {
    int file = open(in_folder("run.dcd"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    name_thread("dcd_writer");
    for (;;) {
        void *frame = get(&frames);
        require(write_all(file, frame, ATOMS), "write");
        put(&spare, frame);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 700 << 20);
    void *positions = pinned(ATOMS);
    pthread_barrier_init(&begin, NULL, 2);
    pthread_barrier_init(&end, NULL, 2);
    for (int i = 0; i < 2; i++) put(&spare, calloc(ATOMS, 1));
    run_thread(bonds, NULL);
    run_thread(output, NULL);
    for (long number = 1;; number++) {
        gpu_copy(positions, ATOMS, TO_DEVICE);
        for (int kernel = 0; kernel < 4; kernel++) gpu_launch(6);
        gpu_copy(positions, ATOMS, TO_HOST);
        pthread_barrier_wait(&begin);
        burn_ms(5);
        pthread_barrier_wait(&end);
        gpu_wait();
        burn_ms(1);
        if (number % (raised("often") ? 10 : 30) == 0) {
            void *frame = get(&spare);
            memcpy(frame, positions, ATOMS);
            put(&frames, frame);
        }
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("namd3 +p2 +devices 0 stmv.namd")


disturb = partial(native.flag, name="often")
SCENARIO = Scenario(HEALTHY, train, disturb, partial(native.built, namd3=_NAMD), needs=native.missing)
