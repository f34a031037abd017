"""Scenarios of `gputop demo` that need a CPU for themselves: they come last (tests/conftest.py), when few other tests run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.demo.test_demo import QUIET, leads_to_its_verdict

_PATIENCE_S = 60.0  # s that an idle CPU is waited for


@pytest.fixture(scope="module")
def _idle_cpu() -> None:
    """Waited for once: where others go on for ever, none of the tests can pass."""
    if not _has_an_idle_cpu():
        pytest.skip("the CPUs are busy with other things, so contention would be the right verdict")


@pytest.mark.soak
@pytest.mark.usefixtures("_idle_cpu")
@pytest.mark.parametrize("name", QUIET)
def test_scenario_leads_to_its_verdict(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leads_to_its_verdict(name, monkeypatch)


def _has_an_idle_cpu() -> bool:
    """Now or soon: other tests run beside this one, and most of these rest now and then."""
    deadline = time.monotonic() + _PATIENCE_S
    while (idle := _idle_cpus()) < 1.0 and time.monotonic() < deadline:
        pass
    return idle >= 1.0


def _idle_cpus() -> float:
    """CPUs idle over half a second (/proc/stat)."""
    before = _idle_ticks()
    time.sleep(0.5)
    return (_idle_ticks() - before) / 0.5 / os.sysconf("SC_CLK_TCK")


def _idle_ticks() -> int:
    return int(Path("/proc/stat").read_text().split()[4])
