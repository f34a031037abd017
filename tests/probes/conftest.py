"""The source on the real kernel, beaten by hand, and workloads whose truth is known."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from gputop.model.board import Board
from gputop.model.frame import Frame, SchedThread
from gputop.sources import Beat, Settings
from gputop.sources.ebpf import budget, uprobe
from gputop.sources.ebpf.helper import Helper
from gputop.sources.ebpf.source import EbpfSource
from tests.require import require
from tests.wait import PATIENCE_S

HERE = Path(__file__).parent
LIFE_S = 300  # s after which a workload ends by itself; it outlasts all that is waited for, and each test ends its own
CLOSER_S = 40.0  # s in which estimates come near enough to the truth, at the latest: each window brings them nearer
Value = TypeVar("Value")


@pytest.fixture(autouse=True)
def _one_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Switches are counted of the whole machine: a storm made by one process of the tests would thin out what another one counts."""
    if request.path.name not in ("test_sched.py", "test_switches.py"):
        yield
        return
    with (Path(tempfile.gettempdir()) / "gputop-tests-switches.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Beaten:
    """A source that is read on demand; what it said is folded and, for pairs, summed as increments."""

    def __init__(self, sizes: dict[str, int] | None = None, settings: Settings | None = None) -> None:
        self.source = EbpfSource(settings or Settings(), sizes)
        self.states = [self.source.open()]
        self.board = Board()
        self.frames: list[Frame] = []
        self.hot: frozenset[int] = frozenset()
        self.taken_ns: dict[int, int] = {}
        """Victim tid -> ns taken from it."""
        self.dead: list[SchedThread] = []

    def tick(self) -> Frame:
        seq, now = len(self.frames), time.monotonic_ns()
        beat = Beat(now, seq, seq == 0, hot=self.hot)
        frame = Frame(seq, now, key=beat.key)
        self.source.read(beat, frame)
        self.states += beat.changed
        for preempt in frame.probes.preempts if frame.probes else []:
            before = self.board.preempts.get((preempt.victim_tid, preempt.culprit_tid))
            self.taken_ns[preempt.victim_tid] = self.taken_ns.get(preempt.victim_tid, 0) + preempt.ns - (before.ns if before else 0)
        self.dead += [thread for thread in frame.probes.threads if thread.state == "dead"] if frame.probes else []
        self.board.fold(frame)
        self.frames.append(frame)
        return frame

    def until(self, condition: Callable[[], Value], what: str) -> Value:
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:.0f} s; {self.states[-1]}"
            time.sleep(0.05)
            self.tick()
        return value

    def until_loaded(self) -> None:
        self.until(lambda: self.source.ready, "loaded")
        assert self.states[-1].state == "ok", self.states[-1]

    def until_it_holds(self, check: Callable[[], None]) -> None:
        """Go on until the assertions of ``check`` hold, which is called with what was just read: on a busy machine it takes more windows
        until what they have met is like the rest."""
        deadline = time.monotonic() + CLOSER_S
        while True:
            self.until(lambda: self.frames[-1].probes, "read")
            try:
                return check()
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            self.beat_for(1.0)

    def beat_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            self.tick()


@pytest.fixture
def beaten() -> Iterator[Callable[..., Beaten]]:
    require("ebpf")
    opened: list[Beaten] = []

    def make(**options: object) -> Beaten:
        opened.append(Beaten(**options))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for one in opened:
        one.source.close()


@pytest.fixture
def run() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `load.py` with a bounded life; ended at the latest with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, path: Path = HERE / "load.py") -> subprocess.Popen[str]:
        command = [sys.executable, str(path), *map(str, arguments)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def attached_by_helper(monkeypatch: pytest.MonkeyPatch, refused: str) -> list[Helper]:
    """Refuse this function of `uprobe` to us for want of privilege, so that helpers attach, without sudo; those that are started."""
    helpers: list[Helper] = []

    def refuse(*_: object) -> list[int]:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def helper(script: str, sudo: bool) -> Helper:
        assert sudo
        helpers.append(Helper(script))
        return helpers[-1]

    monkeypatch.setattr(uprobe, refused, refuse)
    monkeypatch.setattr(budget, "Helper", helper)
    return helpers
