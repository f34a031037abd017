"""A program in C scores checkpoint after checkpoint of a model; the next ones lie on a volume that reads 16 MB/s.

Each checkpoint is read in large pieces and copied to the GPU before the first token is scored, as such programs do without mmap.
Truth: the GPU stands idle for twelve seconds at a time (idle) because `llama-score` waits in read(2) for the weights (disk-io); it is its
own victim, CPUs idle, and nobody else is to blame. A faster volume, or reading weights ahead while the checkpoint before is scored, would
fix it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import native, slow_disk
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SECONDS, _SCORED = 12, 100
_SCORE = f"""
enum {{ PIECE = 4 << 20, TOKENS = {_SCORED} }};

static void load_weights(void *piece) {{
    int file = open(in_folder("samples"), O_RDONLY);
    while (read_all(file, piece, PIECE)) {{
        gpu_copy(piece, PIECE, TO_DEVICE);
        gpu_wait();
    }}
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);  /* as if each were another file */
    close(file);
}}

int main(void) {{
    gpu_open(0, {slow_disk.FILE_BYTES}L);
    void *piece = pinned(PIECE);
    for (long token = 0;; token++) {{
        if (token % TOKENS == TOKENS - 1 && raised("cold")) load_weights(piece);
        for (int layer = 0; layer < 8; layer++) gpu_launch(4);
        gpu_wait();
        step();
    }}
}}
"""


def train(_trainer: Trainer) -> None:
    native.become("llama-score --models checkpoints/ --no-mmap --tasks hellaswag -ngl 99")


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with native.built(running, **{"llama-score": _SCORE}), slow_disk.file(running):
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with slow_disk.throttle(running, bytes_per_s=slow_disk.FILE_BYTES // _SECONDS), native.flag(running, "cold"):
        yield


SCENARIO = Scenario(
    Label("idle", "disk-io"), train, disturb, prepare, needs=lambda: native.missing() or slow_disk.missing(), least_s=2.5 * _SECONDS
)
