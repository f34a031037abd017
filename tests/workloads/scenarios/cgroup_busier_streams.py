"""Video analytics in a container with half a CPU from its start: enough by night, too little when the cameras' scenes begin to move.

Truth: the GPU starves (input-bound) because the container's quota, 50 ms in 100, stops all its threads for most of each period once the two
decoding threads of `nvr_detect` need 12 ms for each pair of frames instead of 2 (cgroup-throttle). Without the quota both would be done in
12 ms, well within the 20 ms of a step on the GPU: the decoder is not what is too slow, and the host's CPUs idle. The quota has not changed,
the load has. The victim is `nvr_detect`, nobody is to blame. Lost: about 0.6 of the GPU's time. A larger quota would fix it; more decoding
threads would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import cgroup, native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CPUS = 0.5
_NVR_DETECT = """
enum { CAMERAS = 2, FRAME = 1280 * 720 * 3 / 2 };
QUEUE(spare, 6);
static struct queue decoded[CAMERAS];

static void *decode(void *camera) {
    name_thread("rtsp_decode");
    for (long number = 0;; number++) {
        unsigned char *frame = get(&spare);
        burn_ms(raised("day") ? 12 : 2);
        memset(frame, (int)number, 1280);
        put(camera, frame);
    }
    return NULL;
}

int main(void) {
    gpu_open(0, 700 << 20);
    for (int i = 0; i < 6; i++) put(&spare, pinned(FRAME));
    for (int i = 0; i < CAMERAS; i++) {
        pthread_mutex_init(&decoded[i].lock, NULL), pthread_cond_init(&decoded[i].changed, NULL);
        decoded[i].room = 1;
        run_thread(decode, &decoded[i]);
    }
    for (;;) {
        for (int i = 0; i < CAMERAS; i++) {
            void *frame = get(&decoded[i]);
            gpu_copy(frame, FRAME, TO_DEVICE);
            put(&spare, frame);
        }
        for (int layer = 0; layer < 5; layer++) gpu_launch(4);
        gpu_wait();
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("nvr_detect --config /etc/nvr.yml --detector tensorrt")


@contextmanager
def container(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as path, native.built(running, nvr_detect=_NVR_DETECT):
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(path)
        with cgroup.limited_cpu(path, _CPUS):
            yield


def missing() -> str:
    return native.missing() or cgroup.missing("cpu")


disturb = partial(native.flag, name="day")
SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, container, needs=missing)
