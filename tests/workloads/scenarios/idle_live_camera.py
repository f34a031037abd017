"""A detector on a live camera: `ffmpeg -re` gives it fifteen frames a second through a pipe, and the model takes 8 ms for one.

Truth: idle, none. The decoder sleeps by its clock between frames, for the camera makes no more; it takes 5 ms of a CPU for a frame, and the
detector waits in read(2) for the next. The GPU works an eighth of the time and answers each frame at once. Nothing is lost, nobody is a
victim or to blame; more cameras would use the GPU.
"""

from __future__ import annotations

from functools import partial
from subprocess import PIPE

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_FFMPEG = """
int main(void) {
    size_t bytes = 960 * 540 * 3 / 2;
    unsigned char *frame = calloc(bytes, 1);
    struct timespec due;
    end_with_parent();
    clock_gettime(CLOCK_MONOTONIC, &due);
    do {
        due.tv_nsec += 1000000000 / 15;
        if (due.tv_nsec >= 1000000000) due.tv_nsec -= 1000000000, due.tv_sec++;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
        burn_ms(5);
    } while (write_all(1, frame, bytes));
    return 0;
}
"""
_DEEPSTREAM = """
int main(void) {
    size_t bytes = 960 * 540 * 3 / 2;
    unsigned char *frame = pinned(bytes);
    gpu_open(0, 500 << 20);
    while (read_all(3, frame, bytes)) {
        gpu_copy(frame, bytes, TO_DEVICE);
        for (int layer = 0; layer < 4; layer++) gpu_launch(2);
        gpu_wait();
        burn_ms(0.3);  /* boxes */
        step();
    }
    return 0;
}
"""


def train(_trainer: Trainer) -> None:
    camera = native.start("ffmpeg -re -rtsp_transport tcp -i rtsp://gate/2 -f rawvideo -pix_fmt nv12 pipe:1", stdout=PIPE)
    assert camera.stdout is not None
    native.hand(camera.stdout, 3)
    native.become("deepstream-app -c gate.txt")


prepare = partial(native.built, ffmpeg=_FFMPEG, **{"deepstream-app": _DEEPSTREAM})
SCENARIO = Scenario(Label("idle", "none"), train, prepare=prepare, needs=native.missing)
