"""TGI in a container whose CPU quota was enough for short questions; then its users send long ones.

Truth: the GPU starves (input-bound), because the container may use 0.4 CPUs, and launcher, router and shard together now want a whole one:
they stand still for the rest of each period, though the host's CPUs idle (cgroup-throttle). Nobody changed the quota; the traffic grew. No
thread of the router would be at a full core without it. A higher quota would fix it; more validation workers would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.workloads import asking, cgroup, deployed, native, program, tokens
from tests.workloads.asking import Ask, Text
from tests.workloads.scenario import Label, Scenario
from tests.workloads.serving import Plan

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_CPUS = 0.4


def train(_trainer: Trainer) -> None:
    program.become_command(deployed.tgi_command("--max-concurrent-requests 64"), serve)


def serve() -> None:
    deployed.tgi(Plan(pass_ms=20.0))


@contextmanager
def container(running: Running) -> Iterator[None]:
    """Its control group, with its quota, and users outside of it."""
    ask = Ask(clients=6, first=Text(answer=8, cpu_ms=2.0), then=Text(answer=8, cpu_ms=70.0), path="/generate_stream", called="gradio")
    with cgroup.group("cpu", running.name) as path, asking.asked(running, ask):
        cgroup.limit_cpu(path, _CPUS)
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(path)
        yield


SCENARIO = Scenario(
    Label("input-bound", "cgroup-throttle"), train, native.flag, container, needs=lambda: cgroup.missing("cpu") or tokens.missing()
)
