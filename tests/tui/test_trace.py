"""`T`: a trace from the screen, of a process that speaks Kineto's protocol, and what the box shows where there is none."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputop.model.trace import TraceReading
from gputop.stream import traced
from gputop.traces import environment
from gputop.tui.app import GputopApp
from gputop.tui.draw.view import View
from gputop.tui.trace_box import TraceScreen
from tests.stacks.test_screen import app
from tests.traces.made import kineto, training, write
from tests.traces.test_taking import job


@pytest.fixture
def folder() -> Iterator[str]:
    path = environment.make_folder(f"/tmp/gputop-test-{os.getpid()}-{uuid.uuid4().hex[:6]}")
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def shown(program: GputopApp, pilot: object, words: str) -> str:
    """The box's text once it has the words."""
    text = ""
    for _ in range(1500):
        screen = program.screen
        if isinstance(screen, TraceScreen):
            text = "\n".join([screen.first_line, *("".join(part for part, _ in line) for line in screen.lines())])
            if words in text:
                return text
        await pilot.pause(0.02)  # type: ignore[attr-defined]
    raise AssertionError(f"{words!r} was not shown: {text}")


async def test_t_takes_a_trace_of_the_selected_process(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write(tmp_path / "whole.json", kineto(training()))
    monkeypatch.chdir(tmp_path)

    def read_beside_the_screen(*what: Any) -> TraceReading:
        with program.context.session.lock:  # a large trace takes seconds, and the screen draws meanwhile
            return real(*what)

    real = traced.read
    monkeypatch.setattr(traced, "read", read_beside_the_screen)
    with job(folder, trace) as one:
        program = app(view=View(selected=one.pid))
        async with program.run_test(size=(120, 35)) as pilot:
            await pilot.press("T")
            text = await shown(program, pilot, "waited for its loader")
            assert "60 % the loop waited for its loader" in text
            [path] = tmp_path.glob("gputop-trace-*.json")
            assert path.name in text
            await pilot.press("T")
            assert not isinstance(program.screen, TraceScreen)


@pytest.mark.parametrize(("view", "words"), [(View(readonly=True), "--readonly"), (View(), "gputop run")])
async def test_where_none_is_taken_the_box_has_the_reason(view: View, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputop.stream.traced.waiting", list)
    program = app(view=view)
    async with program.run_test(size=(120, 35)) as pilot:
        await pilot.press("T")
        await shown(program, pilot, words)
