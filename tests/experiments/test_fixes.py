"""Which fixes `tests.experiments.fixes` makes, and what it calls what they bring."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.experiments.fixes import Outcome
from tests.experiments.processes import running
from tests.require import require
from tests.workloads import scenario
from tests.workloads.advice import SHELL, environment_of, is_own
from tests.workloads.runner import Running
from tests.workloads.scenario import LOADER_VARIABLE


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ("export OMP_NUM_THREADS=1 MKL_NUM_THREADS=2", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"}),
        ("DataLoader(..., num_workers=4, persistent_workers=True)", {LOADER_VARIABLE: '{"num_workers": 4, "persistent_workers": true}'}),
        ("DataLoader(..., collate_fn=...)", None),
        ("gputop stacks 7", None),
        ("", None),
    ],
)
def test_a_new_start_follows_what_variables_and_arguments_say(command: str, variables: dict[str, str] | None) -> None:
    assert environment_of(command) == variables


@pytest.mark.parametrize(
    "command",
    [
        "chrt --idle --all-tasks --pid 0 {pid}",
        "echo 19 > /proc/{pid}/autogroup",
        "ionice -c 3 -p {pid}",
        "for p in {pid}; do taskset -apc 0-1 $p; done",
        "for pid in {pid}; do chrt --idle --all-tasks --pid 0 $pid; done",
    ],
)
def test_only_what_is_the_workloads_own_is_changed(command: str) -> None:
    job = Running("affinity", scenario.load("affinity"), 1.0, Path(), {})
    with running() as own:
        assert SHELL.fullmatch(command)
        assert is_own(command.format(pid=own.pid), job)
        assert not is_own(command.format(pid=os.getppid()), job)
    assert not is_own("echo 100 > /sys/fs/cgroup/system.slice/cpu.weight", job)


@pytest.mark.parametrize(
    ("gain", "bound", "word"),
    [(None, 2.0, "not tried"), (0.8, 2.0, "HARMS"), (1.0, 2.0, "nothing"), (1.5, 2.0, "helps"), (2.5, 2.0, "BEYOND"), (9.0, None, "helps")],
)
def test_a_gain_is_called_by_its_size_and_its_bound(gain: float | None, bound: float | None, word: str) -> None:
    assert Outcome("affinity", bound=bound, gain=gain).word == word


def test_arguments_of_a_loader_are_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    from tests.workloads.loop import loader

    monkeypatch.setenv(LOADER_VARIABLE, json.dumps({"num_workers": 1, "prefetch_factor": 5}))
    made = loader([0] * 8, workers=2)  # type: ignore[arg-type]
    assert (made.num_workers, made.prefetch_factor, made.persistent_workers) == (1, 5, True)
