"""Other people's plug-ins: the example package is on the path of one process, with its broken entries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gputop.system import plugins
from gputop.system.plugins import CAUSES, EXPORTS, SOURCES, Plugin
from tests.wait import PATIENCE_S

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLE = HERE / "plugged"
PACKAGE = "gputop_example-1.0"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What `tests/api/plugging.py` prints."""
    environment = os.environ | {"PYTHONPATH": str(EXAMPLE)}
    command = [sys.executable, "-m", "tests.api.plugging"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_source_is_read_in_each_beat(told: dict[str, Any]) -> None:
    assert told["states"]["other-gpu"] == ["ok", "", ""]
    assert told["gpus"] == [[9, "Other 9000", 100.0], [9, None, 100.0]]
    assert told["states"]["procfs"][0] == "ok", "no plug-in takes the place of a source of gputop's own"
    state, reason, remedy = told["states"]["lost-module"]
    assert (state, "gputop_no_such_module" in reason, PACKAGE in remedy) == ("unavailable", True, True)
    assert told["states"]["exits"][0] == "unavailable"


def test_a_cause_is_judged_and_a_broken_one_costs_a_line(told: dict[str, Any]) -> None:
    code, explained, errors = told["explained"]
    assert code == 0
    assert (explained["verdict"]["cause"], explained["verdict"]["detail"]) == ("noisy-agents", "2 agents took the CPUs")
    assert explained["incidents"][0]["fixes"] == [
        {"text": "Let the agents rest while a training runs", "command": "systemctl stop agents.slice", "look": False}
    ]
    ledger = explained["ledger"]
    assert sum(ledger["by_cause"].values()) == pytest.approx(ledger["gpu_lost_s"])
    assert "cpu-contention" not in ledger["by_cause"]
    assert re.findall(r"plug-in (\S+) of", errors) == ["disk-io", "exits", "no-judge", "always-fails"], "each once"
    assert "ZeroDivisionError: not my day" in errors
    assert told["causes"][-1] == "noisy-agents"


def test_an_export_is_a_format_and_a_broken_one_is_one_line(told: dict[str, Any]) -> None:
    assert told["formats"][-2:] == ["names", "nothing"]
    code, output, errors = told["exported"]
    assert (code, output, errors.startswith("gputop: wrote ")) == (0, "", True)
    assert "metrics-agent" in told["written"]
    code, output, errors = told["broken"]
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert f"the plug-in nothing of {PACKAGE}" in errors


def test_the_version_names_them(told: dict[str, Any]) -> None:
    assert f"plug-in      {PACKAGE}: noisy-agents (gputop.causes)" in told["report"]


def test_entry_points_are_read_as_pip_writes_them(tmp_path: Path) -> None:
    """Groups of others, names that are none, comments and extras; the first on the path wins."""
    (first, second) = (tmp_path / name for name in "ab")
    for folder, package, text in (
        (first, "one-1", "[gputop.exports]\n# note\narrow=one:write [fast]\nBad Name = one:write\nbare = one\n[gputop.other]\nx = one:y\n"),
        (second, "two-2", "[gputop.exports]\narrow = two:write\nzip = two:write\n[gputop.sources]\nrack = two.sources:Rack\n"),
    ):  # fmt: skip
        (folder / f"{package}.dist-info").mkdir(parents=True)
        (folder / f"{package}.dist-info" / "entry_points.txt").write_text(text)
    (second / "three-3.dist-info").mkdir()
    found = plugins._found((str(first), str(tmp_path / "absent"), str(second)))
    assert found == {
        EXPORTS: (Plugin("arrow", "one", "write", "one-1"), Plugin("zip", "two", "write", "two-2")),
        SOURCES: (Plugin("rack", "two.sources", "Rack", "two-2"),),
    }
    assert plugins.plugins(CAUSES) == (), "none is installed beside these tests"
