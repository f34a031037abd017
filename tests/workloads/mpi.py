"""MPI ranks of one node in C: a barrier in shared memory in which who is early spins, as Open MPI has it, and the binding to cores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native
from tests.workloads.runner import Running

RANKS = 2
_WORLD = """
static _Atomic(uint64_t) *arrived; /* by rank, a cache line each */
static int rank, ranks;

static void mpi_init(void) {
    rank = atoi(getenv("RANK")), ranks = atoi(getenv("WORLD_SIZE"));
    int file = open(in_folder("world"), O_RDWR);
    arrived = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    require(arrived != MAP_FAILED, "mmap");
}

static inline void bind_to_core(void) { /* mpirun --bind-to core: rank n has the n-th CPU of those it may use */
    cpu_set_t may, one;
    CPU_ZERO(&one);
    sched_getaffinity(0, sizeof may, &may);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &may) && seen++ == rank) CPU_SET(cpu, &one);
    require(!sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
}

static void barrier(void) {
    uint64_t number = atomic_fetch_add(&arrived[8 * rank], 1) + 1;
    for (int peer = 0; peer < ranks; peer++)
        while (atomic_load(&arrived[8 * peer]) < number) __asm__ volatile("" ::: "memory");
}
"""


@contextmanager
def world(running: Running, **sources: str) -> Iterator[None]:
    """What the ranks share, and a program for each name and its C source, which may use mpi_init(), bind_to_core() and barrier()."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="vader_segment.") as segment:
        segment.truncate(4096)
        (running.folder / "world").symlink_to(segment.name)
        with native.built(running, **{name: _WORLD + source for name, source in sources.items()}):
            yield


def core(rank: int) -> int:
    """The CPU that bind_to_core() gives ``rank``."""
    return sorted(os.sched_getaffinity(0))[rank]
