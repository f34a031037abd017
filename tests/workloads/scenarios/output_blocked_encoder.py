"""A native program filters video on the GPU and pipes raw frames to `x264`, which is asked for a slower preset from some moment on.

Truth: the GPU has nothing to do most of the time because the program blocks in write(2) on a full pipe (output-blocked), whose reader, the
culprit `x264`, has one thread at a full core; its input is there in time. The victim is `ffmpeg`; more threads, a faster preset or NVENC
for the encoder would fix it, a faster decoder or a faster GPU would not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from subprocess import PIPE

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_FFMPEG = """
int main(void) {
    size_t bytes = 1280 * 720 * 3 / 2;
    gpu_open(0, 700 << 20);
    unsigned char *frame = pinned(bytes);
    for (;;) {
        burn_ms(2);
        gpu_copy(frame, bytes, TO_DEVICE);
        for (int filter = 0; filter < 4; filter++) gpu_launch(11);
        gpu_copy(frame, bytes, TO_HOST);
        gpu_wait();
        if (!write_all(3, frame, bytes)) return 1;
        step();
    }
}
"""
_X264 = """
int main(void) {  /* `slow`: --preset veryslow */
    size_t bytes = 1280 * 720 * 3 / 2;
    unsigned char *frame = malloc(bytes);
    end_with_parent();
    while (read_all(0, frame, bytes)) burn_ms(raised("slow") ? 100 : 6);
    return 0;
}
"""


def train(_trainer: Trainer) -> None:
    encoder = native.start("x264 --threads 1 --demuxer raw --input-res 1280x720 --output out.264 -", stdin=PIPE)
    assert encoder.stdin is not None
    os.dup2(encoder.stdin.fileno(), 3)
    native.become("ffmpeg -hwaccel cuda -i in.mp4 -vf bwdif_cuda,nlmeans_vulkan,hwdownload -f rawvideo pipe:3")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    [encoder] = running.named("x264")
    running.blame(encoder, "x264")
    with native.flag(running):
        yield
    running.account()


_LABEL = Label("input-bound", "output-blocked", frozenset({"x264"}))
SCENARIO = Scenario(_LABEL, train, disturb, partial(native.built, ffmpeg=_FFMPEG, x264=_X264), needs=native.missing)
