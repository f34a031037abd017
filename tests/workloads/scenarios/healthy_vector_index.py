"""An index of vectors is built by a native program: a thread reads chunks, the GPU assigns them to cells, a thread adds up new centres.

Truth: healthy. Chunks of 2 MB come from a file in the page cache and are read ahead by a thread; labels come back and the centres are
summed in 7 ms by another while the GPU works on the next chunk (lost: 0.04). From some moment on each fortieth chunk ends an epoch, of
which the GPU makes new cells in a kernel of its own. Nobody is a victim or to blame; only a faster GPU would make it faster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_CHUNKS = 24
_IVF_BUILD = """
enum { CHUNK = 2 << 20, LABELS = 64 << 10 };
QUEUE(spare, 4);
QUEUE(chunks, 2);
QUEUE(labelled, 2);

static void *read_chunks(void *unused) {
    int vectors = open(in_folder("base.fvecs"), O_RDONLY);
    name_thread("ivf_reader");
    for (off_t at = 0;;) {
        void *chunk = get(&spare);
        if (pread(vectors, chunk, CHUNK, at) < CHUNK) {
            at = 0;
            require(pread(vectors, chunk, CHUNK, 0) == CHUNK, "pread");
        }
        at += CHUNK;
        put(&chunks, chunk);
    }
    return unused;
}

static void *sum_up(void *unused) {
    name_thread("ivf_centroids");
    for (;;) {
        void *chunk = get(&labelled);
        burn_ms(7);
        put(&spare, chunk);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 2200u << 20);
    for (int i = 0; i < 4; i++) put(&spare, pinned(CHUNK));
    void *labels = pinned(LABELS);
    run_thread(read_chunks, NULL);
    run_thread(sum_up, NULL);
    for (long number = 1;; number++) {
        void *chunk = get(&chunks);
        gpu_copy(chunk, CHUNK, TO_DEVICE);
        gpu_launch(20);
        gpu_launch(9);
        if (number % 40 == 0 && raised("epochs")) gpu_launch(30);
        gpu_copy(labels, LABELS, TO_HOST);
        gpu_wait();
        put(&labelled, chunk);
        step();
    }
}
"""


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    (running.folder / "base.fvecs").write_bytes(os.urandom(2 << 20) * _CHUNKS)
    with native.built(running, ivf_build=_IVF_BUILD):
        yield


def train(_trainer: Trainer) -> None:
    native.become("ivf_build --base base.fvecs --nlist 65536 --gpu 0")


SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="epochs"), prepare, needs=native.missing)
