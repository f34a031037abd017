"""Free-energy runs in a container that an administrator cuts to a fifth of a CPU: a native program with a part of each step on the CPU.

Truth: the GPU starves (input-bound) because the quota stops all threads of `somd` for most of each period (cgroup-throttle): a step takes
16 ms of CPU, in the main thread and in two helpers, and the container may have 20 ms in 100. The host's CPUs idle. The victim is `somd`,
nobody is to blame. Lost: 0.70 of the GPU's time. A larger quota would fix it; fewer threads would not, and no other process takes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.workloads import cgroup, native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_QUOTA_CPUS = 0.2
_SOMD = """
enum { HELPERS = 2, STATE = 1 << 20 };
static pthread_barrier_t begin, end;

static void *help(void *unused) {
    name_thread("somd_settle");
    for (;;) {
        pthread_barrier_wait(&begin);
        burn_ms(5);
        pthread_barrier_wait(&end);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 500 << 20);
    void *state = pinned(STATE);
    pthread_barrier_init(&begin, NULL, HELPERS + 1);
    pthread_barrier_init(&end, NULL, HELPERS + 1);
    for (int i = 0; i < HELPERS; i++) run_thread(help, NULL);
    for (;;) {
        gpu_copy(state, STATE, TO_DEVICE);
        for (int kernel = 0; kernel < 4; kernel++) gpu_launch(6);
        gpu_copy(state, STATE, TO_HOST);
        pthread_barrier_wait(&begin);
        burn_ms(4);
        pthread_barrier_wait(&end);
        gpu_wait();
        burn_ms(2);  /* the lambda window */
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("somd -C ligand.cfg -l 0.35 -p CUDA")


@contextmanager
def container(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as path, native.built(running, somd=_SOMD):
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(path)
        yield


def cut(running: Running) -> AbstractContextManager[None]:
    return cgroup.limited_cpu(Path(running.env["GPUTOP_WORKLOAD_CGROUP"]), _QUOTA_CPUS)


def missing() -> str:
    return native.missing() or cgroup.missing("cpu")


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, cut, container, needs=missing)
