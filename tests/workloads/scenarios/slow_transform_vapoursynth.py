"""A film is interpolated by a chain of three native programs: `ffmpeg` decodes, `vspipe` runs a filter script, `rife` has the GPU.

Truth: the GPU starves (input-bound) because the script takes its other branch from some scene on: a non-local denoiser, 85 ms of one core
for a frame that `rife` needs 28 ms for (slow-transform). `rife` sleeps in read(2) at the pipe from `vspipe`; `ffmpeg` sleeps in write(2) at
the pipe to it, and is not what is slow. The other CPU idles. The victim is `rife`, the path ends at `vspipe`, which does its own work:
nobody is to blame. Lost: 0.66 of the GPU's time. A threaded denoiser, or one on the GPU, would fix it; a faster decoder would not.
"""

from __future__ import annotations

import os
from functools import partial
from subprocess import PIPE

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_FRAME = "enum { FRAME = 960 * 540 * 3 };"
_FFMPEG = (
    _FRAME
    + """
int main(void) {
    unsigned char *frame = calloc(FRAME, 1);
    end_with_parent();
    for (long number = 0;; number++) {
        burn_ms(3);
        memset(frame, (int)number, 960);
        if (!write_all(1, frame, FRAME)) return 1;
    }
}
"""
)
_VSPIPE = (
    _FRAME
    + """
int main(void) {
    unsigned char *frame = calloc(FRAME, 1);
    end_with_parent();
    while (read_all(0, frame, FRAME)) {
        burn_ms(raised("slow") ? 85 : 6);
        if (!write_all(1, frame, FRAME)) return 1;
    }
    return 0;
}
"""
)
_RIFE = (
    _FRAME
    + """
int main(void) {
    unsigned char *frame = pinned(FRAME);
    gpu_open(0, 1100 << 20);
    while (read_all(0, frame, FRAME)) {
        gpu_copy(frame, FRAME, TO_DEVICE);
        for (int flow = 0; flow < 7; flow++) gpu_launch(4);
        gpu_wait();
        step();
    }
    return 0;
}
"""
)


def train(_trainer: Trainer) -> None:
    decoder = native.start("ffmpeg -v error -i reel2.mxf -f rawvideo -pix_fmt rgb24 -", stdout=PIPE)
    script = native.start("vspipe --container y4m restore.vpy -", stdin=decoder.stdout, stdout=PIPE)
    assert decoder.stdout is not None
    assert script.stdout is not None
    os.dup2(script.stdout.fileno(), 0)
    decoder.stdout.close()
    script.stdout.close()
    native.become("rife --model rife-v4.26 --multi 2 --input -")


prepare = partial(native.built, ffmpeg=_FFMPEG, vspipe=_VSPIPE, rife=_RIFE)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare, needs=native.missing)
