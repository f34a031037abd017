"""Two jobs of two people share one GPU by turns: a native trainer whose data lies on the device, and from some moment on a transcriber.

Truth: each of them keeps a step under way and waits for nothing but the GPU, which is never without work; the trainer's steps are half as
many since the other one came, because the GPU is shared, not because a host thread is late.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.workloads import native
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_LLMC = """
int main(void) {
    gpu_open(0, 3000u << 20);
    void *tokens = pinned(1 << 15);
    for (;;) {
        gpu_copy(tokens, 1 << 15, TO_DEVICE);
        for (int layer = 0; layer < 10; layer++) gpu_launch(2.5);
        gpu_wait();
        step();
    }
}
"""
_WHISPER = """
int main(void) {
    gpu_open(0, 1500u << 20);
    void *mel = pinned(1 << 19);
    end_with_parent();
    for (;;) {
        burn_ms(0.5);
        gpu_copy(mel, 1 << 19, TO_DEVICE);
        for (int layer = 0; layer < 8; layer++) gpu_launch(2.5);
        gpu_wait();
    }
}
"""


def train(_trainer: Trainer) -> None:
    native.become("train_gpt3 -i fineweb_*.bin -e d12 -b 32 -r 0")


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with running.child([str(running.folder / "whisper-cli"), "-m", "large-v3.bin", "-f", "archive/*.flac"]) as other:
        running.blame(other.pid, "whisper-cli")
        yield
        running.account()


prepare = partial(native.built, train_gpt3=_LLMC, **{"whisper-cli": _WHISPER})
SCENARIO = Scenario(Label("wait-heavy", "gpu-shared", frozenset({"whisper-cli"})), train, disturb, prepare, needs=native.missing)
