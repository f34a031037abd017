"""A lattice code in C writes a restart file every sixty steps from some moment on, in its one thread, before it goes on.

Truth: the GPU idles by turns (idle) because `lattice_qcd` stops for more than a second each time: it copies its field out, packs it on one
CPU, writes 48 MB and waits until they are on the disk (pause). Between two files steps are as long as ever and nothing waits for input. The
victim is `lattice_qcd`, nobody is to blame. Lost: half of the GPU's time. Files that a thread packs and writes, or fewer of them, would fix
it; a faster disk alone would not, most of the pause is packing.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_LATTICE_QCD = """
enum { FIELD = 48 << 20, EVERY = 60 };

static void write_restart(void *field) {
    gpu_copy(field, FIELD, TO_HOST);
    gpu_wait();
    burn_ms(1100);  /* pack, checksum */
    int file = open(in_folder("restart.tmp"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    require(write_all(file, field, FIELD) && !fsync(file) && !close(file), "restart");
}

int main(void) {
    gpu_open(0, 3000u << 20);
    void *field = pinned(FIELD);
    for (long number = 1;; number++) {
        burn_ms(0.3);
        for (int kernel = 0; kernel < 10; kernel++) gpu_launch(2.5);
        gpu_wait();
        step();
        if (number % EVERY == 0 && raised("restart")) write_restart(field);
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("lattice_qcd --geom 32 32 32 64 --restart-every 60")


disturb = partial(native.flag, name="restart")
prepare = partial(native.built, lattice_qcd=_LATTICE_QCD)
SCENARIO = Scenario(Label("idle", "pause"), train, disturb, prepare, needs=native.missing)
