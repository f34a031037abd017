"""Two MPI ranks in C: rank 1 owns the larger domain, and rank 0 spins in the barrier of the shared-memory transport until it is there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

RANKS = 2
_NAME = "lbm_solver"
_SOLVER = r"""
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

struct dim3 { unsigned x, y, z; };
int cudaSetDevice(int), cudaMalloc(void **, size_t), cudaDeviceSynchronize(void);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);
void gputop_work(void);

static double cpu_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return at.tv_sec * 1e3 + at.tv_nsec / 1e6;
}

int main(int argc, char **argv) {  /* lbm_solver WINDOW LARGE: a page for the barrier; a file that is there once rank 1's domain is large */
    if (argc < 3)
        return 2;
    prctl(PR_SET_PDEATHSIG, 9);
    int rank = atoi(getenv("OMPI_COMM_WORLD_RANK"));
    _Atomic uint64_t *arrived = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(argv[1], O_RDWR), 0);
    uint64_t kernel_ns = 1500000, step = 0;
    void *memory, *params[] = {&kernel_ns};
    char halo[1 << 14] = {0};
    cudaSetDevice(rank);
    cudaMalloc(&memory, 1 << 30);
    for (volatile double field = 1.0;;) {
        double until = cpu_ms() + (rank == 1 && !access(argv[2], F_OK) ? 40.0 : 3.0);
        while (cpu_ms() < until)  /* particles that crossed the border are sorted on the host */
            for (int i = 0; i < 2000; i++)
                field = field * 1.0000002 + 1e-8;
        cudaMemcpyAsync(memory, halo, sizeof halo, 1, NULL);
        for (int i = 0; i < 16; i++)
            cudaLaunchKernel((const void *)gputop_work, (struct dim3){132, 1, 1}, (struct dim3){256, 1, 1}, params, 0, NULL);
        cudaDeviceSynchronize();
        if (++step == 5) {
            puts("ready");
            fflush(stdout);
        }
        arrived[rank * 8] = step;
        while (arrived[(1 - rank) * 8] < step)  /* MPI_Barrier */
            sched_yield();
    }
}
"""


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    source, library = running.folder / "solver.c", running.env["LD_LIBRARY_PATH"].split(":")
    source.write_text(_SOLVER)
    paths = [flag for folder in library for flag in (f"-L{folder}", f"-Wl,-rpath-link,{folder}")]
    program = str(running.folder / _NAME)
    subprocess.run(["gcc", "-O1", "-o", program, str(source), *paths, "-l:libcudart.so.12"], check=True)
    (running.folder / "window").write_bytes(bytes(4096))
    yield


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    rank = {"OMPI_COMM_WORLD_RANK": str(trainer.rank), "OMPI_COMM_WORLD_SIZE": str(RANKS)}
    env = {name: text for name, text in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")} | rank
    os.execve(folder / _NAME, [_NAME, str(folder / "window"), str(folder / "large")], env)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "large").touch()
    running.blame(running.trainer_pids[1], _NAME)
    yield
    running.account()
    (running.folder / "large").unlink()


SCENARIO = Scenario(Label("straggler", "straggler-rank", frozenset({_NAME})), train, disturb, prepare, ranks=RANKS, devices=RANKS)
