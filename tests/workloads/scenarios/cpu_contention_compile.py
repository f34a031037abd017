"""A colleague's build: compilers of a quarter of a second each, called one after another by a script, two at a time for each CPU."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.stubs.build import build
from tests.workloads.data import Images
from tests.workloads.hogs import SOURCE
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_BUILD = """
while :; do
    for _ in $(seq "$2"); do "$1" 0.25 1 & done
    wait
done
"""


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=9), workers=cpus()), trainer.compute(90 / cpus()))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    script = running.folder / "build.sh"
    script.write_text(_BUILD)
    compiler = build(SOURCE, "cc1plus", program=True)
    command = ["timeout", str(int(running.seconds) + 5), "bash", str(script), str(compiler), str(2 * cpus())]
    with running.child(command, stderr=subprocess.DEVNULL) as watch:
        running.blame(_only_child(watch.pid), "build.sh")
        yield
        running.account()


def _only_child(pid: int) -> int:
    """Of a process that has begun to run, its first child."""
    while True:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            if pids := file.read().split():
                return int(pids[0])


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({"build.sh"})), train, disturb)
