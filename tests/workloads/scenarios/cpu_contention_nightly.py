"""A shared workstation at night: the virus scanner, an editor's indexer and a colleague's boosted trees meet the workers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
enum { SIZE = 1 << 20 };
static unsigned char next[256][256];
static int order(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void scan(const char *path, unsigned char *bytes) {
    int file = open(path, O_RDONLY), state = 0;
    ssize_t got = read(file, bytes, SIZE);
    close(file);
    for (int i = 0; i < got; i++) state = next[state][bytes[i]];
    bytes[0] = state;
}

static void index_unit(int *symbols, unsigned seed) {
    for (int i = 0; i < SIZE / 4; i++) symbols[i] = rand_r(&seed);
    qsort(symbols, SIZE / 4, sizeof *symbols, order);
    usleep(5000);
}

static void grow(const unsigned char *rows, unsigned *histogram) {
    #pragma omp for
    for (int i = 0; i < 8 * SIZE; i++) histogram[rows[i % SIZE]]++;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(atoi(argv[1]));
    unsigned char *rows = calloc(1, SIZE);
    for (int i = 0; i < 1 << 16; i++) next[i >> 8][i & 255] = i * 40503u >> 9;
    #pragma omp parallel num_threads(atoi(argv[2]))
    for (char *own = calloc(1, SIZE);;) {
        if (strstr(argv[0], "clamd")) scan(argv[3], (unsigned char *)own);
        else if (strstr(argv[0], "clangd")) index_unit((int *)own, omp_get_thread_num());
        else grow(rows, (unsigned *)own);
    }
}
"""
_PROCESSES = {"clamd": 1, "clangd": 1, "lightgbm": 2}


def train(trainer: Trainer) -> None:
    images = loader(Images(cpu_ms=12 / cpus()), workers=2 * cpus(), start="spawn", batch=4 * cpus(), in_order=False)
    trainer.fit(images, trainer.compute(90 / cpus(), kernels=6))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    (running.folder / "home.tar").write_bytes(os.urandom(1 << 20))
    for name in _PROCESSES:
        build = ["gcc", "-O2", "-w", "-fopenmp", "-x", "c", "-", "-o", str(running.folder / name)]
        subprocess.run(build, input=_SOURCE, text=True, check=True)
    yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with ExitStack() as stack:
        for name, processes in _PROCESSES.items():
            threads = 2 * cpus() // processes
            command = [str(running.folder / name), str(int(running.seconds) + 5), str(threads), str(running.folder / "home.tar")]
            for _ in range(processes):
                running.blame(stack.enter_context(running.child(command)).pid, name)
        yield
        running.account()


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset(_PROCESSES)), train, disturb, prepare)
