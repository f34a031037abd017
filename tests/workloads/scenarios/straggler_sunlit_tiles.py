"""An atmosphere model in C on two GPUs: ranks put halos into each other's shared memory and look for an epoch, yielding the CPU.

There is no barrier: each rank waits for its neighbour's counter alone, spins a thousand times, and then calls sched_yield(2) between looks.
Truth: both GPUs idle more than half of the time (straggler) because rank 0 owns the sunlit half of the globe and computes its radiation on
the CPU, 35 ms a step from some moment on (straggler-rank). The culprit is rank 0's `mpas_model`, the victim rank 1, which is on a CPU all
the time and gets nowhere. Tiles dealt out by cost, or radiation on the GPU, would fix it; a faster transport would not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_RANKS, _NAME = 2, "mpas_model"
_MODEL = """
enum { HALO = 256 << 10 };
struct window { _Atomic(long) epoch; char pad[56]; char halo[HALO]; };

int main(void) {
    int rank = atoi(getenv("RANK")), file = open(in_folder("window"), O_RDWR);
    struct window *windows = mmap(NULL, 2 * sizeof *windows, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    require(windows != MAP_FAILED, "mmap");
    struct window *mine = &windows[rank], *neighbour = &windows[1 - rank];
    gpu_open(rank, 900 << 20);
    char *halo = pinned(HALO);
    for (long epoch = 1;; epoch++) {
        for (int kernel = 0; kernel < 5; kernel++) gpu_launch(4);
        if (rank == 0 && raised("sunrise")) gpu_wait(), burn_ms(35);
        gpu_copy(halo, HALO, TO_HOST);
        gpu_wait();
        memcpy(neighbour->halo, halo, HALO);
        atomic_store(&mine->epoch, epoch);
        for (long looks = 0; atomic_load(&neighbour->epoch) < epoch; looks++)
            if (looks > 1000) sched_yield();
        memcpy(halo, mine->halo, HALO);
        gpu_copy(halo, HALO, TO_DEVICE);
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become(f"{_NAME} -n namelist.atmosphere -s streams.atmosphere")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="mpas_window.") as window, native.built(running, mpas_model=_MODEL):
        window.truncate(1 << 20)
        (running.folder / "window").symlink_to(window.name)
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    running.blame(running.trainer_pids[0], _NAME)
    with native.flag(running, "sunrise"):
        yield
    running.account()


SCENARIO = Scenario(
    Label("straggler", "straggler-rank", frozenset({_NAME})),
    train,
    disturb,
    prepare,
    ranks=_RANKS,
    devices=_RANKS,
    needs=lambda: native.missing() or ("" if cpus() >= _RANKS else "a core for each rank is needed"),
)
