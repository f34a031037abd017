"""A robot's perception node in C runs ten times a second by its clock: 18 ms of the GPU, then it sleeps until the next tick.

Truth: idle, none. The node is through with each tick in 25 ms and sleeps in clock_nanosleep(2) for the rest of 100 ms by design; no tick is
late. A second process publishes the camera's last frame in shared memory and is never waited for. Nobody is a victim or to blame.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_FRAME = """
enum { FRAME = 256 << 10 };

static char *last_frame(void) {
    char *at = mmap(NULL, FRAME, PROT_READ | PROT_WRITE, MAP_SHARED, open(in_folder("frame"), O_RDWR), 0);
    require(at != MAP_FAILED, "mmap");
    return at;
}
"""
_PERCEPTION = (
    _FRAME
    + """
int main(void) {
    const char *frame = last_frame();
    struct timespec tick;
    gpu_open(0, 700 << 20);
    char *image = pinned(FRAME);
    clock_gettime(CLOCK_MONOTONIC, &tick);
    for (;;) {
        memcpy(image, frame, FRAME);
        burn_ms(2);  /* undistort */
        gpu_copy(image, FRAME, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(3);
        gpu_wait();
        step();
        tick.tv_nsec += 100000000;
        if (tick.tv_nsec >= 1000000000) tick.tv_nsec -= 1000000000, tick.tv_sec++;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &tick, NULL);
    }
}
"""
)
_CAMERA = (
    _FRAME
    + """
int main(void) {
    char *frame = last_frame();
    end_with_parent();
    for (int number = 0;; number++) {
        memset(frame, number, FRAME);
        burn_ms(1);
        sleep_ms(32);
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    native.become("perception_node --ros-args -p rate:=10.0")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="fastrtps_port") as frame:
        frame.truncate(256 << 10)
        (running.folder / "frame").symlink_to(frame.name)
        with native.built(running, perception_node=_PERCEPTION, camera_node=_CAMERA), native.beside(running, "camera_node --ros-args"):
            yield


SCENARIO = Scenario(Label("idle", "none"), train, prepare=prepare, needs=native.missing)
