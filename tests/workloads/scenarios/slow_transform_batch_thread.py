"""A C++ runtime for input pipelines as tf.data's: a reader, three threads that map records, and one that makes batches, which gets slow.

Truth: the GPU starves (input-bound) because one serial stage, the thread `tf_batch` that pads and packs records, is at a full core and
needs 95 ms for a batch of which the GPU takes 30 (slow-transform); the map threads before it wait for room in their queue, and the victim,
the main thread of `tf_train`, waits for batches. Lost: 0.69 of the GPU's time. Padding in the map threads, or packing on the GPU, would fix
it; more map threads would not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_RUNTIME = """
enum { MAPPERS = 3, RECORD = 32 << 10, RECORDS = 32, BATCH = 8 };
QUEUE(spare, 40);
QUEUE(records, 8);
QUEUE(mapped, 12);
QUEUE(batches, 2);

static void *read_records(void *unused) {
    int file = open("/dev/zero", O_RDONLY);
    name_thread("tf_reader");
    for (;;) {
        void *record = get(&spare);
        read_all(file, record, RECORD);
        put(&records, record);
    }
    return unused;
}

static void *map(void *unused) {
    name_thread("tf_map");
    for (;;) {
        void *record = get(&records);
        burn_ms(0.8);
        put(&mapped, record);
    }
    return unused;
}

static void *batch(void *batch) {
    name_thread("tf_batch");
    for (;;) {
        for (int i = 0; i < BATCH; i++) {
            void *record = get(&mapped);
            burn_ms(raised("slow") ? 12 : 0.5);
            put(&spare, record);
        }
        put(&batches, batch);
    }
    return batch;
}

int main(void) {
    size_t bytes = BATCH * RECORD;
    gpu_open(0, 1700 << 20);
    for (int i = 0; i < RECORDS; i++) put(&spare, calloc(RECORD, 1));
    run_thread(read_records, NULL);
    for (int i = 0; i < MAPPERS; i++) run_thread(map, NULL);
    run_thread(batch, pinned(bytes));
    for (;;) {
        gpu_copy(get(&batches), bytes, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(5);
        gpu_wait();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("tf_train --pipeline interleave,map:3,padded_batch:8,prefetch:2")


SCENARIO = Scenario(
    Label("input-bound", "slow-transform"), train, native.flag, partial(native.built, tf_train=_RUNTIME), needs=native.missing
)
