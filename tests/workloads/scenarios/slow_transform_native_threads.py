"""A detector trained by a program in C whose loading threads, one for each CPU, get mosaic augmentation and cannot keep up any more.

Truth: the GPU starves (input-bound) because all threads `load_mosaic` of the process are at a full CPU and need three times as long for a
batch as the GPU (slow-transform); the victim is the main thread of the same `darknet`, nobody else is to blame. Cheaper augmentation, or
augmentation on the GPU, would fix it; more threads would not.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_DARKNET = """
QUEUE(loaded, 4);
static int threads;

static void *load(void *batch) {
    name_thread("load_mosaic");
    for (;;) {
        burn_ms((raised("slow") ? 100 : 6) * threads);  /* a batch is made by one thread: the more there are, the longer each may take */
        put(&loaded, batch);
    }
    return batch;
}

int main(void) {
    size_t bytes = 3 * 416 * 416;
    cpu_set_t may;
    sched_getaffinity(0, sizeof may, &may);
    threads = CPU_COUNT(&may);
    gpu_open(0, 1200 << 20);
    for (int i = 0; i < threads; i++) run_thread(load, pinned(bytes));
    for (;;) {
        gpu_copy(get(&loaded), bytes, TO_DEVICE);
        for (int layer = 0; layer < 8; layer++) gpu_launch(5);
        gpu_wait();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("darknet detector train cfg/coco.data cfg/yolov4.cfg yolov4.conv.137 -dont_show")


prepare = partial(native.built, darknet=_DARKNET)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare, needs=native.missing)
