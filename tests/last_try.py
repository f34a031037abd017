"""The last try of tests that have failed beside others: `python -m tests.last_try FILE`, which `.ci/run` does when a run of tests fails.

A test on real processes fails now and then because a machine is busy, three times in a row, too. It is run once more when nothing else of
the run is left: alone, and once. What fails then has failed. There is no such try for pure functions, for files that cannot be collected,
for a test that took its worker along, or where more than a few tests failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
LIVE = (
    "alerts", "api", "bench", "demo", "experiments", "fleet", "metrics", "probes", "pty", "recording", "sources", "stacks", "tui",
    "workloads", "agents/test_machines.py", "agents/test_server.py", "test_contributing.py", "test_docs.py", "test_packaging.py",
    "test_readme.py", "traces/test_auto.py", "traces/test_otherwise.py", "traces/test_taking.py",
)  # fmt: skip
"""Folders and files whose tests start processes, open terminals or load probes: not `unit`."""
NEVER = ("tests/experiments/test_kills.py",)  # what is not put back once is a fault, however busy the machine
MOST, MOST_S = 10, 180.0  # tests that get a last try, and s that all of them have: with more the cause is no busy machine
CRASHED = "???"  # what pytest-xdist has for the part of a test in which its worker ended


def is_live(path: Path) -> bool:
    """Whether what the tests of this file do depends on who else is on the machine."""
    within = path.relative_to(HERE)
    return within.parts[0] in LIVE or within.as_posix() in LIVE


def write(path: Path, reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> None:
    """Keep which tests have failed: their ids, and in which part of them."""
    path.write_text(json.dumps([(report.nodeid, getattr(report, "when", "collect")) for report in reports]))


def refusal(failed: list[list[Any]]) -> str:
    """Why these tests get no last try; empty if they do."""
    if not failed:
        return "the run failed without a test that failed"
    for test, when in failed:
        file, _, name = test.partition("::")
        if when == CRASHED:
            return f"{test}: its worker ended"
        if not name:
            return f"{file} cannot be collected"
        if file in NEVER:
            return f"{test} must never fail"
        if not is_live(HERE.parent / file):
            return f"{test} is a test of pure functions"
    count = len({test for test, _ in failed})
    return f"{count} tests have failed, and not only {MOST}" if count > MOST else ""


def main(path: str) -> int:
    """0 if all that had failed passes now."""
    kept = Path(path)
    failed = json.loads(kept.read_text() or "[]") if kept.exists() else []
    if why := refusal(failed):
        print(f"no last try: {why}", flush=True)
        return 1
    tests = sorted({test for test, _ in failed})
    print(f"last try, alone, of what failed beside others ({len(tests)}):", *tests, sep="\n  ", flush=True)
    without = [word for name in ("xdist", "rerunfailures", "cacheprovider") for word in ("-p", f"no:{name}")]
    try:
        code = subprocess.run([sys.executable, "-m", "pytest", *without, *tests], cwd=HERE.parent, timeout=MOST_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"last try: not within {MOST_S:.0f} s", flush=True)
        return 1
    print(f"last try: {'passed: they fail beside others, which is a fault of theirs all the same' if not code else 'failed'}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
