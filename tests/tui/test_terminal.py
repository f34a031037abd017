"""The terminal driver: when it resumes, and what it reads."""

from __future__ import annotations

import os
import pty
import threading
import time
import tty
from types import SimpleNamespace

import pytest
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Event, Key, Paste, Resize
from textual.geometry import Size
from textual.message import Message

from gputop.tui.terminal import TerminalDriver
from tests.wait import PATIENCE_S


@pytest.mark.parametrize(("ending", "hung_up", "resumes"), [(False, False, True), (True, False, False), (False, True, False)])
def test_sigcont_resumes_only_what_goes_on(monkeypatch: pytest.MonkeyPatch, ending: bool, hung_up: bool, resumes: bool) -> None:
    resumed: list[object] = []
    monkeypatch.setattr(LinuxDriver, "_sigcont_application", lambda driver, *_: resumed.append(driver))
    master, slave = pty.openpty()
    driver = TerminalDriver.__new__(TerminalDriver)
    driver._app = SimpleNamespace(_exit=ending)  # type: ignore[assignment]
    driver.fileno = slave
    driver._must_signal_resume = True
    if hung_up:
        os.close(master)
    driver._sigcont_application()
    os.close(slave)
    if not hung_up:
        os.close(master)
    assert bool(resumed) is resumes


def test_what_is_pasted_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    driver, met = TerminalDriver.__new__(TerminalDriver), list[Event]()
    driver.fileno, driver.exit_event, driver._debug = slave, threading.Event(), False
    driver._app = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setattr(driver, "process_message", met.append)
    monkeypatch.setattr(driver, "_wait_for_application", lambda: None)
    monkeypatch.setattr(driver, "_end", lambda: None)
    os.write(master, b"x\x1b[200~foo\x1b[2JqK\x1b[201~y")
    reader = threading.Thread(target=driver.run_input_thread, daemon=True)
    reader.start()
    deadline = time.monotonic() + PATIENCE_S
    while len(met) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    driver.exit_event.set()
    reader.join(PATIENCE_S)
    os.close(master)
    os.close(slave)
    assert [one.text if isinstance(one, Paste) else one.key for one in met if isinstance(one, (Key, Paste))] == ["x", "foo[2JqK", "y"]


@pytest.mark.parametrize("reports_sizes", [False, True])
def test_a_size_that_is_typed_counts_only_where_the_terminal_reports_sizes(monkeypatch: pytest.MonkeyPatch, reports_sizes: bool) -> None:
    driver, met = TerminalDriver.__new__(TerminalDriver), list[Message]()
    driver._in_band_window_resize = reports_sizes
    monkeypatch.setattr(LinuxDriver, "process_message", lambda _, message: met.append(message))
    key, resize = Key("x", "x"), Resize(Size(1, 1), Size(1, 1))
    for message in (resize, key):
        driver.process_message(message)
    assert met == ([resize, key] if reports_sizes else [key])
