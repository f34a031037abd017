"""A thread that meets an error nobody thought of says so; it does not die in silence, nor print over the screen."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.diagnosis import Engine
from gputop.findings.verdict import Incident
from gputop.model.board import Board
from gputop.model.frame import Stack
from gputop.stacks import capture as capture_module
from gputop.stacks import sampling
from gputop.stacks.capture import capture
from gputop.stream import stalled
from gputop.stream.stalled import AutoCapture, AutoStacks
from gputop.stream.survey import Survey
from gputop.tui.stacks_box import StacksScreen
from tests.stacks.test_screen import app, shown
from tests.wait import PATIENCE_S, until

TOO_MANY = OSError(24, "Too many open files")


@pytest.fixture(autouse=True)
def _no_thread_dies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: died.append(what.exc_value))
    yield
    assert died == []


def fail(*_: object, **__: object) -> None:
    raise TOO_MANY


def test_a_process_whose_reading_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "_process", fail)
    (stack,) = capture([os.getpid()]).stacks
    assert stack.error == "could not be read: [Errno 24] Too many open files"


def test_a_main_thread_that_cannot_be_sampled_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "sample", fail)
    monkeypatch.setattr(sampling, "watch_cuda_calls", fail)
    assert sampling.watch_main_threads([7], 0.1) == ([], {7: "could not be sampled: [Errno 24] Too many open files"})
    monkeypatch.setattr(sampling, "sample", lambda _pid, _s: [(("f (a.py:1)",), 3)])
    (found,), failed = sampling.watch_main_threads([7], 0.1)
    assert (found.no_cuda, failed) == ("[Errno 24] Too many open files", {})


async def test_the_screen_says_why_there_are_none_and_takes_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "capture", fail)
    program = app()
    async with program.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        program.push_screen(StacksScreen(program.context, [os.getpid()]))
        screen = await shown(program, pilot, "Too many open files")
        monkeypatch.undo()
        await pilot.press("r")
        await shown(program, pilot, "in ")
        assert not screen._is_busy


def test_an_incident_whose_stacks_fail_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "capture", fail)
    monkeypatch.setattr(stalled, "_of", lambda *_: [os.getpid()])
    engine, taken = Engine(), list[list[Stack]]()
    engine.incidents.append(Incident(1, 5, None, "idle", "pause", "high", 1.0, None, None, 0.0, "", "", [], [], [], []))
    auto = AutoCapture(AutoStacks(), taken.append)
    assert auto.step(Board(t_ns=10), engine)
    assert auto._taking is not None
    auto._taking.join(PATIENCE_S)
    assert not auto.step(Board(t_ns=11), engine)
    assert taken == []


def test_a_survey_that_is_cut_short_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "python"
    child.write_text('#!/bin/sh\necho \'{"until_ns":7}\'\nprintf \'{"until_ns":9, "epi\'\n')
    child.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(child))
    survey = Survey(["run.gputop"])
    until(lambda: survey.done)
    survey.close()
    assert survey.until_ns == 7
