"""An upscaler in C reads raw frames from the pipe of an `ffmpeg`, and the film's second part is AV1, for which that decoder has one thread.

Truth: the GPU starves (input-bound) because the decoder takes a whole core for each frame and needs longer than the GPU does
(slow-transform); the victim is `upscale`, and a decoder with more threads, or NVDEC, would fix it.
"""

from __future__ import annotations

import os
from functools import partial
from subprocess import PIPE

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_FFMPEG = """
int main(void) {  /* yuv420p frames of 1280x720; `slow`: the part in AV1 */
    size_t bytes = 1280 * 720 * 3 / 2;
    unsigned char *frame = calloc(bytes, 1);
    end_with_parent();
    for (long number = 0;; number++) {
        burn_ms(raised("slow") ? 130 : 7);
        memset(frame, (int)number, 1280);
        if (!write_all(1, frame, bytes)) return 1;
    }
}
"""
_UPSCALE = """
int main(void) {
    size_t bytes = 1280 * 720 * 3 / 2;
    gpu_open(0, 900 << 20);
    unsigned char *frame = pinned(bytes);
    while (read_all(0, frame, bytes)) {
        gpu_copy(frame, bytes, TO_DEVICE);
        for (int block = 0; block < 6; block++) gpu_launch(6);
        gpu_wait();
        step();
    }
    return 0;
}
"""


def train(_trainer: Trainer) -> None:
    decoder = native.start("ffmpeg -loglevel error -threads 1 -i film.mkv -f rawvideo -pix_fmt yuv420p -", stdout=PIPE)
    assert decoder.stdout is not None
    os.dup2(decoder.stdout.fileno(), 0)
    decoder.stdout.close()
    native.become("upscale --model realesrgan-x2 --size 1280x720 --input -")


prepare = partial(native.built, ffmpeg=_FFMPEG, upscale=_UPSCALE)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare, needs=native.missing)
