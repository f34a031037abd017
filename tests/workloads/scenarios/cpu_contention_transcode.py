"""A transcoder on the GPU whose decoder is another program before a pipe; somebody starts a build, in a session of its own for each tool.

Truth: the GPU starves (input-bound) because `ffmpeg`, which needs 20 ms of a CPU for a frame of which the GPU takes 30 ms, is runnable most
of the time and does not run: `cc1plus`, `lto1`, `rustc` and `ld.lld` have all CPUs, two threads each for two CPUs (cpu-contention), and are
the culprits. Victims are `ffmpeg` and `nvenc_worker`, which waits in read(2) and needs hardly any CPU. Lost: 0.7 of the GPU's time on two
CPUs. `nice` for the build, or fewer jobs, would fix it; a faster disk or a larger pipe would not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from subprocess import PIPE

from tests.workloads import hogs, native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_BUILD = ("cc1plus", "lto1", "rustc", "ld.lld")
_FRAME = "enum { FRAME = 1280 * 720 * 3 / 2 };"
_FFMPEG = (
    _FRAME
    + """
int main(void) {
    unsigned char *frame = calloc(FRAME, 1);
    end_with_parent();
    do burn_ms(20); while (write_all(1, frame, FRAME));
    return 0;
}
"""
)
_NVENC = (
    _FRAME
    + """
int main(void) {
    unsigned char *frame = pinned(FRAME);
    int out = open("/dev/null", O_WRONLY);
    gpu_open(0, 400 << 20);
    while (read_all(3, frame, FRAME)) {
        gpu_copy(frame, FRAME, TO_DEVICE);
        for (int pass = 0; pass < 3; pass++) gpu_launch(10);
        gpu_copy(frame, 40 << 10, TO_HOST);
        gpu_wait();
        write_all(out, frame, 40 << 10);
        step();
    }
    return 0;
}
"""
)


def train(_trainer: Trainer) -> None:
    decoder = native.start("ffmpeg -i in.mxf -threads 1 -f rawvideo -pix_fmt yuv420p pipe:1", stdout=PIPE)
    assert decoder.stdout is not None
    native.hand(decoder.stdout, 3)
    native.become("nvenc_worker --codec hevc --preset p7 --in fd:3")


def _build_all(running: Running) -> AbstractContextManager[None]:
    return hogs.hogs(running, dict.fromkeys(_BUILD, cpus()))


prepare = partial(native.built, ffmpeg=_FFMPEG, nvenc_worker=_NVENC)
SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset(_BUILD)), train, _build_all, prepare, needs=native.missing)
