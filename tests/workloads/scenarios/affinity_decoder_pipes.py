"""Two cameras, each decoded by a program of its own into a pipe, and an analyser on the GPU; a tuning script pins both decoders.

Truth: the GPU starves (input-bound) because both `camdecode`, which take 20 ms of CPU for a frame, may run on one CPU only from some moment
on (affinity), and take turns there while the other CPU idles. The victims are they and `crowd_count`, which waits in read(2) for a frame of
each; nobody is to blame. Lost: 0.4 of the GPU's time. A wider mask for the decoders would fix it; more decoders or a faster GPU would not.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_CAMERAS = 2
_FRAME = "enum { FRAME = 384 << 10, CAMERAS = 2 };"
_DECODER = (
    _FRAME
    + """
int main(void) {
    char *frame = calloc(FRAME, 1);
    end_with_parent();
    do burn_ms(20);
    while (write_all(1, frame, FRAME));
    return 0;
}
"""
)
_ANALYSER = (
    _FRAME
    + """
int main(void) {
    gpu_open(0, 1100 << 20);
    char *frames = pinned(CAMERAS * FRAME);
    for (;;) {
        for (int camera = 0; camera < CAMERAS; camera++)
            if (!read_all(10 + camera, frames + camera * FRAME, FRAME)) return 1;
        gpu_copy(frames, CAMERAS * FRAME, TO_DEVICE);
        for (int layer = 0; layer < 6; layer++) gpu_launch(4);
        gpu_wait();
        step();
    }
}
"""
)


def train(_trainer: Trainer) -> None:
    for camera in range(_CAMERAS):
        decoder = native.start(f"camdecode -c:v hevc -i rtsp://cam{camera}/live -f rawvideo pipe:1", stdout=subprocess.PIPE)
        assert decoder.stdout is not None
        native.hand(decoder.stdout, 10 + camera)
    native.become("crowd_count --cameras 2 --engine crowd.plan")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """The script leaves them the first CPU of those they have."""
    for decoder in running.named("camdecode"):
        os.sched_setaffinity(decoder, {min(os.sched_getaffinity(0))})
    yield


prepare = partial(native.built, crowd_count=_ANALYSER, camdecode=_DECODER)
SCENARIO = Scenario(
    Label("input-bound", "affinity"), train, disturb, prepare, needs=lambda: native.missing() or ("" if cpus() > 1 else "one CPU only")
)
