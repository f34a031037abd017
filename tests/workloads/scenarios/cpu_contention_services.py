"""Eight small daemons, none of which takes half a CPU: only together are they too much for the workers."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_SERVICES = ("promtail", "filebeat", "auditbeat", "osqueryd", "falco", "collectd", "zabbix_agentd", "wazuh-agentd")


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=cpus()), trainer.compute(80 / cpus()))


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, dict.fromkeys(_SERVICES, max(1, cpus() // 2)), duty_pct=45, period_ms=20)


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset(_SERVICES)), train, disturb)
