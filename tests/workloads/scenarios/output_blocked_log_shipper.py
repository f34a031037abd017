"""`train.py | shipper`: each step prints kilobytes of statistics, and the reader of the pipe sends them on at a fixed pace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_LINE = "layer.weight.grad norm=0.02517 max=0.31\n" * 200
_NAME = "log-shipper"
_SHIPPER = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(1, 9)
ctypes.CDLL(None).prctl(15, b"log-shipper")
print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
while text := os.read(0, 4096):
    if os.path.exists(sys.argv[2]):
        time.sleep(len(text) / 120e3)
"""


def train(trainer: Trainer) -> None:
    folder = os.environ["GPUTOP_WORKLOAD_FOLDER"]
    command = [sys.executable, "-c", _SHIPPER, f"{folder}/shipper", f"{folder}/metered"]
    compute = trainer.compute(20, kernels=10)
    with subprocess.Popen(command, stdin=subprocess.PIPE) as shipper:
        assert shipper.stdin is not None
        log = shipper.stdin.fileno()

        def step(batch: object) -> None:
            compute(batch)
            os.write(log, _LINE.encode())

        trainer.fit(iter(int, 1), step)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "metered").touch()
    running.blame(int((running.folder / "shipper").read_text()), _NAME)
    yield
    running.account()
    (running.folder / "metered").unlink()


SCENARIO = Scenario(Label("wait-heavy", "output-blocked", frozenset({_NAME})), train, disturb)
