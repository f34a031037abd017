"""The jobs: the labelled workloads of gputop's tests, read where they stand in a checkout, or from the copy that the wheel carries."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
TREE = next(path for path in (_HERE / "tree", _HERE.parents[1]) if (path / "tests" / "workloads").is_dir())
"""The folder with `tests/workloads`. A job's processes have it in PYTHONPATH (`tests.workloads.environment`)."""
if str(TREE) not in sys.path:
    sys.path.insert(0, str(TREE))

from tests.corpus import calm  # noqa: E402
from tests.workloads import advice, environment, pace, runner, scenario  # noqa: E402

__all__ = ["PACKAGE", "TREE", "advice", "calm", "environment", "has_loader", "has_loop", "pace", "runner", "scenario", "source", "title"]
PACKAGE = _HERE.parent  # what a tool has in PYTHONPATH to import slowbench
_LOOPS = ("trainer.fit(", "trainer.epoch(", "Ranks(")  # a loop that a profiler inside the job can wrap (`tests/workloads/loop.py`)


def source(job: str) -> str:
    """The text of a job's file."""
    return (TREE / "tests" / "workloads" / "scenarios" / f"{job.replace('-', '_')}.py").read_text(encoding="utf-8")


def title(job: str) -> str:
    """The first sentence of a job's file."""
    return source(job).split('"""')[1].split("\n\n")[0].replace("\n", " ").strip()


def has_loop(job: str) -> bool:
    """Whether a profiler inside the job sees its steps."""
    return any(loop in source(job) for loop in _LOOPS)


def has_loader(job: str) -> bool:
    """Whether the job has a DataLoader whose arguments can be changed from outside."""
    return re.search(r"[lL]oader\(", source(job)) is not None
