"""A farm's renderer works through frames at full pace: a thread loads scenes ahead, the GPU renders, a thread packs and writes pictures.

Truth: healthy. From some moment on the scenes have more geometry, 12 ms of loading instead of 8, and pictures are packed harder, 11 ms
instead of 9; the GPU needs 45 ms for a frame, both threads of `cycles_batch` are done earlier and sleep until it is. The GPU works all the
time, steps are as long as ever, nobody is a victim or to blame, and there is nothing to fix.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_CYCLES_BATCH = """
enum { SCENE = 2 << 20, PICTURE = 3 << 20 };
QUEUE(spare_scenes, 4);
QUEUE(scenes, 3);
QUEUE(spare_pictures, 3);
QUEUE(pictures, 2);

static void *load(void *unused) {
    name_thread("scene_load");
    for (;;) {
        char *scene = get(&spare_scenes);
        burn_ms(raised("geometry") ? 12 : 8);
        memset(scene, 1, 4096);
        put(&scenes, scene);
    }
    return unused;
}

static void *save(void *unused) {
    int file = open("/dev/null", O_WRONLY);
    name_thread("exr_write");
    for (;;) {
        void *picture = get(&pictures);
        burn_ms(raised("geometry") ? 11 : 9);
        require(write_all(file, picture, PICTURE), "write");
        put(&spare_pictures, picture);
    }
    return unused;
}

int main(void) {
    gpu_open(0, 2400u << 20);
    for (int i = 0; i < 4; i++) put(&spare_scenes, pinned(SCENE));
    for (int i = 0; i < 3; i++) put(&spare_pictures, pinned(PICTURE));
    run_thread(load, NULL), run_thread(save, NULL);
    for (;;) {
        void *scene = get(&scenes), *picture = get(&spare_pictures);
        gpu_copy(scene, SCENE, TO_DEVICE);
        for (int tile = 0; tile < 9; tile++) gpu_launch(5);
        gpu_copy(picture, PICTURE, TO_HOST);
        gpu_wait();
        put(&spare_scenes, scene), put(&pictures, picture);
        step();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("cycles_batch --frames 1-4000 --device CUDA shot_0140.blend")


disturb = partial(native.flag, name="geometry")
prepare = partial(native.built, cycles_batch=_CYCLES_BATCH)
SCENARIO = Scenario(HEALTHY, train, disturb, prepare, needs=native.missing)
