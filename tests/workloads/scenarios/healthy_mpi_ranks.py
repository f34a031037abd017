"""Two MPI ranks of a lattice code with a GPU each: from some moment on they measure now and then, by turns.

Truth: healthy. The rank whose turn it is has a few milliseconds more to do on the CPU in each step, while the step's kernels run; the
barrier costs next to nothing and both GPUs work nearly all the time. Nobody is a victim or to blame, and only faster GPUs would make it
faster.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import mpi, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_QCD = """
int main(void) {
    size_t halo = 1 << 20;
    mpi_init();
    gpu_open(rank, 600 << 20);
    void *spinors = pinned(halo);
    for (long number = 0;; number++) {
        gpu_copy(spinors, halo, TO_DEVICE);
        for (int kernel = 0; kernel < 5; kernel++) gpu_launch(9);
        burn_ms(2);  /* while the kernels run */
        if (raised("measure") && number / 8 % 2 == rank) burn_ms(7);
        gpu_copy(spinors, halo, TO_HOST);
        gpu_wait();
        barrier();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("chroma -i hmc.ini.xml -geom 1 1 1 2")


disturb = partial(native.flag, name="measure")
prepare = partial(mpi.world, chroma=_QCD)
SCENARIO = Scenario(HEALTHY, train, disturb, prepare, ranks=mpi.RANKS, devices=mpi.RANKS, needs=native.missing)
