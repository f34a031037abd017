"""Training in C++ with the optimizer moved to the host, as ZeRO-Offload does: gradients come out, Adam runs on the CPU, weights go back.

Truth: the GPU waits (wait-heavy) because the main thread of `ds_train` and one helper run Adam for 70 ms after each step of 34 ms, between
the copy out and the copy in (host-optimizer: work of the host that nothing overlaps with). Batches are there in time: their
queue is full and the loading thread sleeps. Nobody else is a victim or to blame. Lost: 0.67 of the GPU's time. The optimizer on the GPU, or
delayed updates that overlap with the next step, would fix it; more loading threads could not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_DS_TRAIN = """
enum { SHARD = 24 << 20, BATCH = 256 << 10 };
QUEUE(batches, 4);
static pthread_barrier_t begin, end;

static void *load(void *batch) {
    name_thread("loader");
    for (;;) {
        burn_ms(1);
        put(&batches, batch);
    }
    return batch;
}

static void *adam(void *unused) {
    name_thread("cpu_adam");
    for (;;) {
        pthread_barrier_wait(&begin);
        burn_ms(40);
        pthread_barrier_wait(&end);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 3500u << 20);
    void *shard = pinned(SHARD);
    pthread_barrier_init(&begin, NULL, 2);
    pthread_barrier_init(&end, NULL, 2);
    run_thread(load, pinned(BATCH));
    run_thread(adam, NULL);
    for (;;) {
        gpu_copy(get(&batches), BATCH, TO_DEVICE);
        for (int layer = 0; layer < 8; layer++) gpu_launch(4.25);
        if (raised("offload")) {
            gpu_copy(shard, SHARD, TO_HOST);
            gpu_wait();
            pthread_barrier_wait(&begin);
            burn_ms(70);
            pthread_barrier_wait(&end);
            gpu_copy(shard, SHARD, TO_DEVICE);
        } else {
            gpu_launch(2);
            gpu_wait();
        }
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("ds_train --zero 2 --offload-optimizer cpu --config gpt.json")


_LABEL = Label("wait-heavy", "host-optimizer")
SCENARIO = Scenario(_LABEL, train, partial(native.flag, name="offload"), partial(native.built, ds_train=_DS_TRAIN), needs=native.missing)
