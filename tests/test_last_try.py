"""Who gets a last try after a run of tests that failed, and what comes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import last_try
from tests.wait import PATIENCE_S

LIVE = "tests/sources/test_users.py::test_without_room_for_a_thread_a_name_comes_later"
PURE = "tests/unit/test_text.py::test_any"
AT_FIRST = """
import os, pytest
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if not os.path.exists({path!r}) or {always}:
        open({path!r}, "w").close()
        raise AssertionError("the machine is busy")
"""
"""A plug-in by which a test fails at first, or always."""


@pytest.mark.parametrize(
    ("failed", "why"),
    [
        ([], "without a test"),
        ([(PURE, "call")], "pure functions"),
        ([(LIVE, "call"), (PURE, "teardown")], "pure functions"),
        ([(LIVE, last_try.CRASHED)], "its worker ended"),
        ([("tests/sources/test_users.py", "collect")], "cannot be collected"),
        ([("tests/experiments/test_kills.py::test_any", "call")], "must never fail"),
        ([(f"{LIVE}[{number}]", "call") for number in range(last_try.MOST + 1)], "11 tests"),
        ([(LIVE, "call"), (LIVE, "teardown")] * last_try.MOST, ""),
    ],
)
def test_few_tests_on_real_processes_get_one(failed: list[tuple[str, str]], why: str) -> None:
    told = last_try.refusal([list(one) for one in failed])
    assert why in told
    assert bool(told) == bool(why)


def test_a_run_that_left_no_file_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert last_try.main(str(tmp_path / "failed")) == 1
    assert "no last try" in capsys.readouterr().out


@pytest.mark.parametrize("always", [False, True])
def test_what_failed_in_a_run_is_run_once_more(tmp_path: Path, always: bool) -> None:
    (tmp_path / "busy.py").write_text(AT_FIRST.format(path=str(tmp_path / "tried"), always=always))
    failed, environ = tmp_path / "failed", os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": "-p busy"}
    quietly = {"cwd": last_try.HERE.parent, "capture_output": True, "text": True, "timeout": PATIENCE_S, "check": False}
    run = [sys.executable, "-m", "pytest", "-p", "no:rerunfailures", "-p", "no:cacheprovider", "-n", "1", LIVE]
    first = subprocess.run(run, env=environ | {"GPUTOP_FAILED": str(failed)}, **quietly)  # type: ignore[call-overload]
    assert first.returncode == 1, first.stdout
    assert json.loads(failed.read_text()) == [[LIVE, "call"]]
    again = subprocess.run([sys.executable, "-m", "tests.last_try", str(failed)], env=environ, **quietly)  # type: ignore[call-overload]
    assert again.returncode == int(always), again.stdout
    assert f"  {LIVE}\n" in again.stdout
    assert ("last try: failed" in again.stdout) == always
