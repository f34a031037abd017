"""Three native programs in a chain of pipes: `ffmpeg` decodes, a denoiser works on the GPU, `svtav1` encodes; one scene is harder.

Truth: healthy. From some moment on the encoder takes twice the CPU and the decoder sends a group of frames at a time, as both do in a scene
with much motion; each has time to spare all the same, both pipes are waited for by turns, and the GPU works nearly all the time. Nobody is
a victim or to blame, and only a faster GPU would make it faster.
"""

from __future__ import annotations

import os
from functools import partial
from subprocess import PIPE

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_FRAME = "enum { BYTES = 960 * 540 * 3 / 2, GROUP = 2 };"
_FFMPEG = f"""{_FRAME}
int main(void) {{
    unsigned char *frames = calloc(GROUP, BYTES);
    end_with_parent();
    for (;;) {{
        int group = raised("motion") ? GROUP : 1;
        for (int i = 0; i < group; i++) burn_ms(3);
        if (!write_all(1, frames, (size_t)group * BYTES)) return 1;
    }}
}}
"""
_DENOISE = f"""{_FRAME}
int main(void) {{
    gpu_open(0, 700 << 20);
    unsigned char *frame = pinned(BYTES);
    while (read_all(0, frame, BYTES)) {{
        gpu_copy(frame, BYTES, TO_DEVICE);
        for (int pass = 0; pass < 5; pass++) gpu_launch(9);
        gpu_copy(frame, BYTES, TO_HOST);
        gpu_wait();
        if (!write_all(3, frame, BYTES)) return 1;
        step();
    }}
    return 0;
}}
"""
_SVTAV1 = f"""{_FRAME}
int main(void) {{
    unsigned char *frame = malloc(BYTES);
    end_with_parent();
    while (read_all(0, frame, BYTES)) burn_ms(raised("motion") ? 8 : 4);
    return 0;
}}
"""


def train(_trainer: Trainer) -> None:
    decoder = native.start("ffmpeg -i film.mkv -f rawvideo -", stdout=PIPE)
    encoder = native.start("svtav1 -i stdin -w 960 -h 540 -b out.ivf", stdin=PIPE)
    assert decoder.stdout is not None
    assert encoder.stdin is not None
    os.dup2(decoder.stdout.fileno(), 0)
    os.dup2(encoder.stdin.fileno(), 3)
    native.become("denoise --in - --out fd:3 --strength 4")


prepare = partial(native.built, ffmpeg=_FFMPEG, denoise=_DENOISE, svtav1=_SVTAV1)
SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="motion"), prepare, needs=native.missing)
