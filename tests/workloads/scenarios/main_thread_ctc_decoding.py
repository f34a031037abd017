"""Batch transcription: an acoustic model on the GPU, and a prefix beam search in Python over its output, between the batches.

The features come from two workers that are far ahead. After each forward pass the logits go home and the script itself searches the
beams of each utterance, some 30 ms for a batch that the GPU took 12 ms for. The trainer's own Python is what the GPU waits for.
"""

from __future__ import annotations

import random

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_FRAMES, _LETTERS, _UTTERANCES = 24, 16, 16
_BEAMS = 10

Beams = dict[tuple[int, ...], list[float]]
"""Prefix -> probability with a blank at its end, without."""


def train(trainer: Trainer) -> None:
    gpu, chance = trainer.gpu, random.Random(7)
    logits = [[chance.random() for _ in range(_LETTERS)] for _ in range(_FRAMES)]

    def transcribe(_batch: object) -> None:
        gpu.copy_in(2 << 20, pinned=True)
        for _layer in range(6):
            gpu.launch(2)
        gpu.copy_out(_UTTERANCES * _FRAMES * _LETTERS * 4)
        for _utterance in range(_UTTERANCES):
            search(logits)

    trainer.fit(loader(Images(cpu_ms=0.4), workers=2), transcribe)


def search(frames: list[list[float]]) -> tuple[int, ...]:
    """The likeliest letters; letter 0 is the blank."""
    beams: Beams = {(): [1.0, 0.0]}
    for frame in frames:
        longer: Beams = {}
        for prefix, (blank, letter) in beams.items():
            for symbol, chance in enumerate(frame):
                if symbol == 0:
                    longer.setdefault(prefix, [0.0, 0.0])[0] += (blank + letter) * chance
                elif prefix and prefix[-1] == symbol:
                    longer.setdefault(prefix, [0.0, 0.0])[1] += letter * chance
                    longer.setdefault((*prefix, symbol), [0.0, 0.0])[1] += blank * chance
                else:
                    longer.setdefault((*prefix, symbol), [0.0, 0.0])[1] += (blank + letter) * chance
        beams = dict(sorted(longer.items(), key=lambda beam: -sum(beam[1]))[:_BEAMS])
    return max(beams, key=lambda prefix: sum(beams[prefix]))


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
