"""Text generation at batch size one without CUDA graphs: for each token 24 layers of eight kernels that take microseconds on few SMs.

The tokens stay on the device, and the host looks for the end of the text only every 16 of them. There is no input to wait for and hardly a
synchronization: kernels follow each other all the time, so utilization is high, and nearly all of the GPU idles. The kernels are too small.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_LAYERS = 24
_TOKENS = 16
_KERNELS = [  # of a layer at one token: ms, blocks
    (0.004, 1),  # norm
    (0.012, 16),  # query, key and value
    (0.004, 2),  # rotary
    (0.009, 8),  # attention
    (0.008, 12),  # out
    (0.004, 1),  # norm
    (0.012, 16),  # up and gate
    (0.010, 12),  # down
]


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def generate(_prompt: object) -> None:
        for _token in range(_TOKENS):
            for _layer in range(_LAYERS):
                for length_ms, blocks in _KERNELS:
                    gpu.launch(length_ms, blocks)
            gpu.launch(0.02, 24)  # logits and argmax
        gpu.copy_out(4 * _TOKENS)

    trainer.fit(_prompts(), generate)


def _prompts() -> Iterator[list[int]]:
    while True:
        yield [1, 15043, 29892]


SCENARIO = Scenario(Label("busy-not-working", "small-kernels"), train)
