"""Two processes on one CPU: what a fix says makes the culprit yield, on this kernel, from what the sources read of the two."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gputop.collector.beat import make_header
from gputop.diagnosis.facts.facts import Taker
from gputop.diagnosis.graph import shell
from gputop.model.board import Board
from gputop.model.frame import Frame
from gputop.sources import Beat, Settings
from gputop.sources.procfs import ProcfsSource
from tests.wait import PATIENCE_S
from tests.workloads import cgroup

BURN = "import os; os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\nwhile 1: pass"
MOST = 5  # times what the hog has


@pytest.fixture
def scope() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def burner(scope: ExitStack, own_session: bool, group: Path | None = None) -> int:
    process = subprocess.Popen([sys.executable, "-c", BURN], start_new_session=own_session)
    scope.callback(process.wait)
    scope.callback(process.kill)
    if group is not None:
        cgroup.add(group, [process.pid])
    return process.pid


def fix_for(hog: int, job: int) -> str:
    """The diagnosis's own command, from the frames of the real /proc that have both."""
    source, board, number = ProcfsSource(Settings()), Board(), 0
    source.open()
    while not {hog, job} <= board.infos.keys():
        frame = Frame(number, time.monotonic_ns(), key=not number)
        source.read(Beat(frame.t_ns, number, frame.key), frame)
        board.fold(frame)
        number += 1
    source.close()
    header = make_header(Settings())
    version = 2 if cgroup.is_v2("cpu") else 1
    [fix] = shell.fixes([Taker(hog, "hog", 1.0, info=board.infos[hog])], board.infos[job], version, header.autogroup)
    return fix.command


def oncpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def yields(hog: int, job: int) -> None:
    """Since now the job has had many times what the hog has: wait for it."""
    before, deadline = (oncpu_ns(job), oncpu_ns(hog)), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        mine, theirs = oncpu_ns(job) - before[0], oncpu_ns(hog) - before[1]
        if mine > 500_000_000 and mine > MOST * theirs:
            return
        time.sleep(0.1)
    raise AssertionError(f"the job ran {mine / 1e9:.1f} s, the hog {theirs / 1e9:.1f} s")


@pytest.mark.parametrize("apart", ["", "session", "cgroup"])
def test_the_fix_makes_it_yield(apart: str, scope: ExitStack) -> None:
    if os.geteuid() != 0 or (apart == "cgroup" and cgroup.missing("cpu")):
        pytest.skip("not root")
    group = scope.enter_context(cgroup.group("cpu", "yielding")) if apart == "cgroup" else None
    hog, job = burner(scope, apart == "session", group), burner(scope, apart == "session")
    command = fix_for(hog, job)
    assert ("cgroup" in command) == (apart == "cgroup")
    subprocess.run(["sh", "-c", command], check=True)
    yields(hog, job)
