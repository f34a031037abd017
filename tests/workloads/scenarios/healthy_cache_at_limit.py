"""A flow solver in C replays its inflow from a large file, in a container whose memory limit the page cache of that file has reached.

Truth: healthy. A thread reads a megabyte of inflow a step, in order and round and round, and the container keeps a third of the file: each
block has been dropped when its turn comes, reclaim goes on all the time, and the disk gives it again in a few milliseconds, long before the
GPU is through with its 32 ms. Steps are as long as before the limit. Nobody is a victim or to blame.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.workloads import native, slow_disk, tight_memory
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_ROOM_BYTES = slow_disk.FILE_BYTES // 3
_SOLVER = """
enum { INFLOW = 1 << 20, PLANES = 192 };
QUEUE(spare, 4);
QUEUE(planes, 3);

static void *read_inflow(void *unused) {
    int file = open(in_folder("samples"), O_RDONLY);
    name_thread("inflow");
    for (long plane = 0;; plane = (plane + 1) % PLANES) {
        void *to = get(&spare);
        require(pread(file, to, INFLOW, plane * INFLOW) == INFLOW, "inflow");
        put(&planes, to);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 2500u << 20);
    for (int i = 0; i < 4; i++) put(&spare, pinned(INFLOW));
    run_thread(read_inflow, NULL);
    for (;;) {
        void *plane = get(&planes);
        gpu_copy(plane, INFLOW, TO_DEVICE);
        for (int kernel = 0; kernel < 8; kernel++) gpu_launch(4);
        gpu_wait();
        put(&spare, plane);
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("les_solver --case jet --inflow precursor.bin")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tight_memory.group(running), native.built(running, les_solver=_SOLVER):
        yield


def disturb(running: Running) -> AbstractContextManager[Path]:
    return tight_memory.limited(running, _ROOM_BYTES)


def missing() -> str:
    return native.missing() or tight_memory.missing()


SCENARIO = Scenario(HEALTHY, train, disturb, prepare, needs=missing)
