"""Two MPI ranks, bound to a core each by their launcher, and a neighbour's pipeline that somebody binds to the second one's core as well.

Truth: both GPUs idle most of the time (straggler) because rank 1, whose work is the same as ever, waits for its own core (cpu-contention);
the culprits are the pipeline's programs, the victims rank 1 and, in the barrier behind it, rank 0, which spins. Another core for the
pipeline, or `--bind-to none`, would fix it; balancing the ranks' work would not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from tests.workloads import mpi, native
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_PIPELINE = ("bwa", "samtools", "minimap2", "pigz", "blastn", "bcftools", "fastqc")
_CFD = """
int main(void) {
    size_t halo = 2 << 20;
    mpi_init();
    bind_to_core();
    gpu_open(rank, 600 << 20);
    void *cells = pinned(halo);
    for (;;) {
        gpu_copy(cells, halo, TO_DEVICE);
        for (int kernel = 0; kernel < 4; kernel++) gpu_launch(8);
        burn_ms(14);  /* boundary conditions, while the kernels run */
        gpu_copy(cells, halo, TO_HOST);
        gpu_wait();
        barrier();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("nekrs --setup channel.par --backend CUDA")


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, dict.fromkeys(_PIPELINE, 1), through=("taskset", "-c", str(mpi.core(1))))


SCENARIO = Scenario(
    Label("straggler", "cpu-contention", frozenset(_PIPELINE)),
    train,
    disturb,
    partial(mpi.world, nekrs=_CFD),
    ranks=mpi.RANKS,
    devices=mpi.RANKS,
    needs=lambda: native.missing() or ("" if cpus() >= mpi.RANKS else "a core for each rank is needed"),
)
