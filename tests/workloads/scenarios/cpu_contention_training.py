"""A colleague's sweep, two trainings on GPUs of their own, keeps up only because its many workers take the CPUs of this one's few."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running, descendants
from tests.workloads.scenario import Label, Scenario, cpus

_OTHER = Path(__file__).parents[1] / "plain_train.py"
_WORKER = "pt_data_worker"


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=cpus()), trainer.compute(80 / cpus()))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    load = {"--workers": 2 * cpus(), "--cpu-ms": 8, "--gpu-ms": 240 / cpus(), "--seconds": running.seconds + 60}
    command = [sys.executable, str(_OTHER), *(str(word) for flag in load.items() for word in flag)]
    with ExitStack() as stack:
        others = [stack.enter_context(running.child(["env", f"CUDA_VISIBLE_DEVICES={device}", *command], stdout=-1)) for device in (1, 2)]
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()  # it trains steadily
        for pid in descendants([other.pid for other in others]):
            if Path(f"/proc/{pid}/comm").read_text().strip() == _WORKER:
                running.blame(pid, _WORKER)
        yield
        running.account()


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_WORKER})), train, disturb, devices=3)
