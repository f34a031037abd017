"""A renderer pipes frames to a muxer, and the muxer pipes the film to an uploader, which is told to keep to a small bandwidth.

Truth: the GPU has nothing to do most of the time (input-bound) because the whole chain writes into full pipes (output-blocked): `renderer`
sleeps in write(2) until `muxer` reads, and `muxer` sleeps in write(2) until `rclone` reads, which sleeps by its own `--bwlimit` and is the
culprit. Nobody is at a full core, no disk and no network takes part. The victims are `renderer` and `muxer`. Lost: 0.75 of the GPU's time.
A larger limit, or a file in between, would fix it; a faster muxer would not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CULPRIT = "rclone"
_RENDERER = """
enum { FRAME = 512 << 10 };

int main(void) {
    gpu_open(0, 1800 << 20);
    char *frame = pinned(FRAME);
    for (;;) {
        burn_ms(1.5);  /* the scene graph */
        for (int sample = 0; sample < 4; sample++) gpu_launch(6);
        gpu_copy(frame, FRAME, TO_HOST);
        gpu_wait();
        if (!write_all(3, frame, FRAME)) return 1;
        step();
    }
}
"""
_MUXER = """
enum { PACKET = 64 << 10 };

int main(void) {
    char *packet = malloc(PACKET);
    end_with_parent();
    while (read_all(0, packet, PACKET)) {
        burn_ms(0.2);
        if (!write_all(1, packet, PACKET)) return 1;
    }
    return 0;
}
"""
_RCLONE = """
enum { PART = 32 << 10 };

int main(void) {
    char *part = malloc(PART);
    end_with_parent();
    while (read_all(0, part, PART)) {
        burn_ms(0.05);
        if (raised("daytime")) sleep_ms(6);  /* --bwlimit "08:00,5M 20:00,off" */
    }
    return 0;
}
"""


def train(_trainer: Trainer) -> None:
    uploader = native.start("rclone rcat --bwlimit 08:00,5M remote:dailies/shot.mkv", stdin=subprocess.PIPE)
    muxer = native.start("muxer -f matroska -i - -", stdin=subprocess.PIPE, stdout=uploader.stdin)
    assert muxer.stdin is not None
    native.hand(muxer.stdin, 3)
    native.become("renderer --scene harbour.usdc --frames 1-2400")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    [uploader] = running.named(_CULPRIT)
    running.blame(uploader, _CULPRIT)
    with native.flag(running, "daytime"):
        yield
    running.account()


prepare = partial(native.built, renderer=_RENDERER, muxer=_MUXER, rclone=_RCLONE)
SCENARIO = Scenario(Label("input-bound", "output-blocked", frozenset({_CULPRIT})), train, disturb, prepare, needs=native.missing)
