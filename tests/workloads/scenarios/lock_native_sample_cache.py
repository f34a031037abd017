"""A recommender trained by a program in C++ style: four threads look their samples up in one cache behind one mutex, and a fifth trims it.

Truth: the GPU starves (input-bound) because the trimming thread, from some moment on, keeps the mutex while it waits for a flush, and the
loading threads and, behind them, the main thread wait in futex (lock-contention); CPUs idle meanwhile. The victim is `dlrm_train`, to blame
is its own thread `cache_trim`. Trimming without the mutex held through the flush would fix it; more loading threads would not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_DLRM = """
enum { LOADERS = 4 };
QUEUE(loaded, 2);
static pthread_mutex_t cache = PTHREAD_MUTEX_INITIALIZER;

static void *load(void *batch) {
    name_thread("loader");
    for (;;) {
        pthread_mutex_lock(&cache);
        burn_ms(1);  /* look up */
        pthread_mutex_unlock(&cache);
        burn_ms(4);  /* unpack */
        put(&loaded, batch);
    }
    return batch;
}

static void *trim(void *unused) {
    name_thread("cache_trim");
    for (;;) {
        pthread_mutex_lock(&cache);
        burn_ms(1);
        if (raised("flush")) sleep_ms(800);  /* the flush of what goes, which a remote store confirms */
        pthread_mutex_unlock(&cache);
        sleep_ms(8);
    }
    return unused;
}

int main(void) {
    size_t bytes = 1 << 19;
    gpu_open(0, 1200 << 20);
    for (int i = 0; i < LOADERS; i++) run_thread(load, pinned(bytes));
    run_thread(trim, NULL);
    for (;;) {
        gpu_copy(get(&loaded), bytes, TO_DEVICE);
        for (int table = 0; table < 7; table++) gpu_launch(5);
        gpu_wait();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("dlrm_train --config criteo.json --loaders 4 --cache-gb 64")


disturb = partial(native.flag, name="flush")
SCENARIO = Scenario(Label("input-bound", "lock-contention"), train, disturb, partial(native.built, dlrm_train=_DLRM), needs=native.missing)
