"""The first frame on the screen, before Textual is there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from gputop.commands import opening as show
from gputop.diagnosis import Engine
from gputop.model.frame import Frame, Header
from gputop.system import tty
from gputop.tui.draw.view import View
from tests.bench.live_cost import Scene, set_up
from tests.pty.terminal import ALTERNATE_SCREEN, CURSOR, FOCUS, MOUSE, PASTE, Terminal

SLOW_IMPORT = """
import sys, time
class Finder:  # Textual takes as long as on a cold disk
    def find_spec(name, *_):
        if name == "textual.app":
            {do}
sys.meta_path.insert(0, Finder)
from gputop.commands import opening
opening.FIRST_S = 100.0  # on a loaded machine the first frame comes late
sys.argv = ["gputop", "--no-ebpf"]
import runpy
runpy.run_module("gputop", run_name="__main__")
"""


@contextmanager
def opening(do: str) -> Iterator[Terminal]:
    """gputop, which does this as it begins to import Textual's application."""
    with set_up(Scene(2, 3), "util_low 97") as env, Terminal([sys.executable, "-c", SLOW_IMPORT.format(do=do)], env=env) as terminal:
        yield terminal


def test_gpus_and_their_processes_stand_there_before_textual_is_imported() -> None:
    with opening("time.sleep(60)") as terminal:
        terminal.wait_text("STARTING", "97%", "GPU", "tests.bench.crowd")
        assert "LIVE" not in terminal.text()
        assert ALTERNATE_SCREEN in terminal.modes


def test_the_dashboard_takes_over() -> None:
    with opening("pass") as terminal:
        terminal.wait_text("LIVE", "tests.bench.crowd")
        assert "STARTING" not in terminal.text()
        terminal.send("q")
        assert terminal.exit_code() == 0
        assert terminal.modes & {ALTERNATE_SCREEN, CURSOR, PASTE, FOCUS, *MOUSE} == {CURSOR}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_gives_the_terminal_back_and_ends_it(number: signal.Signals) -> None:
    with opening("time.sleep(60)") as terminal:
        terminal.wait_text("STARTING")
        os.kill(terminal.pid, number)
        assert terminal.exit_code() == -number
        assert terminal.modes & {ALTERNATE_SCREEN, CURSOR, PASTE, FOCUS, *MOUSE} == {CURSOR}


def test_messages_of_broken_plug_ins_come_before_the_screen_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    reading, writing = os.pipe()
    monkeypatch.setattr(Engine, "load_causes", staticmethod(lambda: order.append("causes")))
    monkeypatch.setattr(tty, "take", lambda *_: order.append("screen"))
    monkeypatch.setattr(show, "_is_ours", lambda _: True)
    monkeypatch.setattr(show, "_first_items", lambda _: [Header(), Frame(0, 1_000_000_000, key=True)])
    monkeypatch.setattr(show, "_ENDS", ())
    show.show_first(SimpleNamespace(put_back=lambda _: None), View(width=80, height=24), reading, writing)  # type: ignore[arg-type]
    for descriptor in (reading, writing):
        os.close(descriptor)
    assert order == ["causes", "screen"]


def test_an_error_gives_the_terminal_back() -> None:
    with opening("raise ImportError('no such thing')") as terminal:
        assert terminal.exit_code() == 1
        assert terminal.modes & {ALTERNATE_SCREEN, CURSOR, PASTE, FOCUS, *MOUSE} == {CURSOR}
        assert "no such thing" in terminal.after.decode()
