"""A model server in C swaps between two models whose weights are mapped and in the page cache: a swap takes a moment, service goes on.

Truth: healthy. From some moment on the server changes the model every ten seconds, which is a copy of 192 MB from the page cache to the
GPU, some tenths of a second; otherwise it generates without a gap. Nothing waits for a disk, nobody is a victim or to blame, and there is
nothing to fix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native, slow_disk
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_EVERY_S = 10
_SERVER = f"""
int main(void) {{
    size_t bytes = {slow_disk.FILE_BYTES}L, piece = 16 << 20;
    gpu_open(0, bytes);
    char *weights = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, open(in_folder("samples"), O_RDONLY), 0);
    require(weights != MAP_FAILED, "mmap");
    for (double swapped = 0;;) {{
        if (raised("swap") && now_s() - swapped > {_EVERY_S}) {{
            for (size_t at = 0; at < bytes; at += piece) gpu_copy(weights + at, piece, TO_DEVICE);
            swapped = now_s();
        }}
        for (int layer = 0; layer < 8; layer++) gpu_launch(4.5);
        gpu_wait();
        burn_ms(1);  /* sample the next token */
        step();
    }}
}}
"""


def train(_trainer: Trainer) -> None:
    native.become("llama-server --models-dir models --models-max 1 --port 8080 -ngl 99")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, **{"llama-server": _SERVER}), slow_disk.file(running):
        yield


SCENARIO = Scenario(HEALTHY, train, partial(native.flag, name="swap"), prepare, needs=native.missing)
