"""No workers: the script reads its batches from a program it started, as from `zcat` or `ffmpeg`, which cannot keep up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_BATCH_BYTES = 1 << 16
_PROGRAM = f"""
import sys, time
while True:
    until = time.thread_time() + 0.06
    while time.thread_time() < until: pass
    sys.stdout.buffer.write(bytes({_BATCH_BYTES})); sys.stdout.flush()
"""


def batches(source: subprocess.Popen[bytes]) -> Iterator[bytes]:
    assert source.stdout is not None
    while batch := source.stdout.read(_BATCH_BYTES):
        yield batch


def train(trainer: Trainer) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE) as source:
        trainer.fit(batches(source), trainer.compute(25))
        source.kill()


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
