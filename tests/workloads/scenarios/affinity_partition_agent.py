"""A site's agent, meant to keep batch jobs on their partition, pins a running job to one CPU with `taskset`; a neighbour idles along.

The job had used one and a half CPUs of the machine. Now the trainer and its two workers, with all of their threads, share one, which is
full, and the other CPUs idle but for a log packer that takes a few per cent of them. The packer would not be felt without the mask, and the
job would be as slow without the packer: being pinned to too few CPUs is the cause.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running, descendants
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=3.6), workers=2, start="spawn"), trainer.compute(20))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """A log for the packer, which is there from the beginning."""
    log = running.folder / "access.log"
    log.write_bytes(random.Random(4).randbytes(3000) * 60)
    pack = ["sh", "-c", 'while sleep 0.4; do gzip -6 -c "$0"; done', str(log)]
    with running.child(pack, stdout=subprocess.DEVNULL):
        yield


@contextmanager
def pinned(running: Running) -> Iterator[None]:
    """What the agent does for each process of the job."""
    first = min(os.sched_getaffinity(0))
    for pid in [*running.trainer_pids, *descendants(running.trainer_pids)]:
        subprocess.run(["taskset", "--all-tasks", "--cpu-list", "--pid", str(first), str(pid)], check=False, capture_output=True)
    yield


SCENARIO = Scenario(Label("input-bound", "affinity"), train, pinned, prepare, needs=lambda: "" if cpus() > 1 else "one CPU")
