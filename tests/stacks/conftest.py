"""Processes to take stacks of: started, awaited, and ended with the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "stalled.py"


class Target:
    """One running case of stalled.py (or another program that says ``ready``); ``said`` holds the words it printed before that."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.said: list[str] = []
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) != "ready\n":
            assert line, f"{command} ended before it was ready"
            self.said += line.split()

    @property
    def pid(self) -> int:
        return self.process.pid


@pytest.fixture
def start_command() -> Iterator[Callable[..., Target]]:
    """``start_command(*command)`` gives a `Target` that has said ``ready``."""
    targets: list[Target] = []

    def begin(*command: str) -> Target:
        targets.append(Target(*command))
        return targets[-1]

    yield begin
    for target in targets:
        os.killpg(target.pid, signal.SIGKILL)
        target.process.communicate()


@pytest.fixture
def start(start_command: Callable[..., Target]) -> Callable[..., Target]:
    """``start(case, argument="", python=sys.executable)`` gives a `Target` that has reached its stall's door."""

    def begin(case: str, argument: str = "", python: str = sys.executable) -> Target:
        return start_command(python, str(PROGRAM), case, argument)

    return begin
