"""The jobs: the labelled workloads of gputop's tests, read where they stand in a checkout, or from the copy that the wheel carries."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
TREE = next(path for path in (_HERE / "tree", _HERE.parents[1]) if (path / "tests" / "workloads").is_dir())
"""The folder with `tests/workloads`. A job's processes have it in PYTHONPATH (`tests.workloads.environment`)."""
if str(TREE) not in sys.path:
    sys.path.insert(0, str(TREE))

from tests.corpus import calm  # noqa: E402
from tests.workloads import advice, environment, runner, scenario, simgpu  # noqa: E402

__all__ = ["PACKAGE", "TREE", "advice", "calm", "environment", "runner", "scenario", "simgpu"]
PACKAGE = _HERE.parent  # what a tool has in PYTHONPATH to import slowbench
