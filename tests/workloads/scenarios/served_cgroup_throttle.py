"""A vLLM in a container of which somebody lowers the CPU quota to 0.4 CPUs.

Truth: the GPU starves (input-bound): API server and engine are stopped for the rest of each period once the quota is used up, though the
host's CPUs idle (cgroup-throttle). A higher quota would fix it; a faster tokenizer would only hide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import cgroup, served
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CPUS = 0.4


def train(trainer: Trainer) -> None:
    served.engine(trainer, pass_ms=12.0, tokenize_ms=(20.0, 20.0), schedule_ms=(2.0, 2.0))


@contextmanager
def container(running: Running) -> Iterator[None]:
    """The control group, and clients outside it."""
    with cgroup.group("cpu", running.name) as path, served.asked(running, clients=8, answer=8):
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(path)
        yield


@contextmanager
def update(running: Running) -> Iterator[None]:
    """The lower quota."""
    with cgroup.limited_cpu(Path(running.env["GPUTOP_WORKLOAD_CGROUP"]), _CPUS):
        yield


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, update, container, needs=lambda: cgroup.missing("cpu"))
