"""Reverse-time migration in C: the main thread reads one stored wavefield a step back from scratch, past the page cache; the disk slows.

Truth: the GPU starves (input-bound) because the scratch volume gives no more than 12 MB/s from some moment on (disk-io): the main thread of
`rtm` sleeps in pread(2) for 80 ms before each step of 24 ms. There is no other process and no other thread, and CPUs idle. The victim is
`rtm`, nobody is to blame. Lost: 0.75 of the GPU's time. A faster volume, compressed wavefields, or a thread that reads ahead and more of
them in memory would fix it; more CPUs would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native, slow_disk
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_BYTES_PER_S = 12 << 20
_RTM = """
enum { WAVEFIELD = 1 << 20, STORED = 192 };

int main(void) {
    int scratch = open(in_folder("samples"), O_RDONLY | O_DIRECT);
    void *wavefield = aligned_alloc(4096, WAVEFIELD);
    gpu_open(0, 3000u << 20);
    for (long t = STORED - 1;; t = t ? t - 1 : STORED - 1) {
        require(pread(scratch, wavefield, WAVEFIELD, t * WAVEFIELD) == WAVEFIELD, "pread");
        gpu_copy(wavefield, WAVEFIELD, TO_DEVICE);
        for (int kernel = 0; kernel < 4; kernel++) gpu_launch(6);  /* backward step, imaging condition */
        gpu_wait();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("rtm par=salt.par scratch=/scratch/shot0042")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with slow_disk.file(running), native.built(running, rtm=_RTM):
        yield


def missing() -> str:
    return native.missing() or slow_disk.missing()


disturb = partial(slow_disk.throttle, bytes_per_s=_BYTES_PER_S)
SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, prepare, needs=missing)
