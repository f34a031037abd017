"""Each scenario of `gputop demo` gets its verdict from what is really measured. Who else wants the CPUs is another trouble, so these tests
come one after the other, before others (tests/conftest.py)."""

from __future__ import annotations

import os
import time

import pytest

from gputop.demo.scenarios import SCENARIOS
from gputop.demo.stage import staged
from gputop.stream.child import ChildStream, collector_argv
from gputop.stream.session import Session
from tests.wait import PATIENCE_S

SOON = ("cpu-contention", "queue-full-healthy")  # the others are `make soak`


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SOON else pytest.mark.soak) for name in sorted(SCENARIOS)])
def test_scenario_leads_to_its_verdict(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = SCENARIOS[name]
    if scenario.quota and os.geteuid() != 0:
        pytest.skip("a CPU quota needs root")
    seen = []
    with staged(name, PATIENCE_S) as environment:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        stream, session, deadline = ChildStream(collector_argv(["--no-ebpf"])), Session(), time.monotonic() + PATIENCE_S
        try:
            while time.monotonic() < deadline and (scenario.symptom, scenario.cause) not in seen:
                for item in stream.read(0.2) or []:
                    session.ingest(item)
                verdict = session.engine.verdict
                if verdict.trainer_pid and verdict.confidence >= 0.5:
                    seen.append((verdict.symptom, verdict.cause))
        finally:
            stream.close()
    assert (scenario.symptom, scenario.cause) in seen, dict.fromkeys(seen)
    assert session.header is not None
    assert session.header.simulated
    assert session.board.sources["nvml"].state == "off"
