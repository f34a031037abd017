"""Molecular dynamics over MPI: two ranks with a GPU each, which spin in a barrier after each step; one half of the box gets crowded.

Truth: both GPUs idle most of the time (straggler) because rank 1 rebuilds the neighbour lists of its crowded half on the CPU, twenty times
as long as before (straggler-rank); the culprit is rank 1's `gmx_mpi`, the victim rank 0, which burns a CPU in the barrier and is busy with
nothing. Dynamic load balancing, or neighbour lists on the GPU, would fix it; a faster network would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import mpi, native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_GMX = """
int main(void) {
    size_t halo = 1 << 20;
    mpi_init();
    gpu_open(rank, 600 << 20);
    void *forces = pinned(halo);
    for (;;) {
        burn_ms(rank == 1 && raised("crowded") ? 70 : 3);  /* neighbour lists */
        gpu_copy(forces, halo, TO_DEVICE);
        for (int kernel = 0; kernel < 3; kernel++) gpu_launch(10);
        gpu_copy(forces, halo, TO_HOST);
        gpu_wait();
        barrier();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("gmx_mpi mdrun -deffnm npt -nb gpu -pme gpu -dlb no")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    running.blame(running.trainer_pids[1], "gmx_mpi")
    with native.flag(running, "crowded"):
        yield
    running.account()


_LABEL = Label("straggler", "straggler-rank", frozenset({"gmx_mpi"}))
prepare = partial(mpi.world, gmx_mpi=_GMX)
SCENARIO = Scenario(_LABEL, train, disturb, prepare, ranks=mpi.RANKS, devices=mpi.RANKS, needs=native.missing)
