"""The terminal driver: when it resumes, and what it reads."""

from __future__ import annotations

import os
import pty
import select
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Event, Key, Paste, Resize
from textual.geometry import Size
from textual.message import Message

from gputop.tui import terminal
from gputop.tui.terminal import PatientWriter, PolledEvent, TerminalDriver
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
    driver.fileno, driver.exit_event, driver._debug = slave, PolledEvent(), False
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


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds; fails if it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def written_by() -> Iterator[tuple[PatientWriter, int]]:
    """A writer on a terminal, and the terminal's other end."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    with open(slave, "w", encoding="utf-8", errors="backslashreplace") as file:
        writer = PatientWriter(file)
        writer.start()
        try:
            yield writer, master
        finally:
            writer.gone = True
            os.close(master)
            writer.stop()


def test_what_the_terminal_takes_is_written_at_once() -> None:
    with written_by() as (writer, master):
        for text in ("█ 40 %", "\udc80", "x\n"):
            writer.write(text)
            assert writer.backlog == 0
        received, wanted = b"", "█ 40 %\\udc80x\n".encode()
        while len(received) < len(wanted):  # a terminal hands on what has come so far
            assert select.select([master], [], [], PATIENCE_S)[0]
            received += os.read(master, 4096)
        assert received == wanted


@pytest.mark.parametrize("at_once", [True, False])
def test_a_terminal_that_takes_nothing_holds_nobody_up_and_loses_nothing(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    if not at_once:
        monkeypatch.setattr(terminal, "_not_waiting", lambda _: -1)
    texts = [f"{number}: {'▅' * 9999}\n" for number in range(20)]
    with written_by() as (writer, master):
        for text in texts:
            writer.write(text)
        assert writer.backlog > 0
        received, wanted = b"", "".join(texts).encode()
        while len(received) < len(wanted):
            assert select.select([master], [], [], PATIENCE_S)[0]
            received += os.read(master, 1 << 16)
        assert received == wanted
        until(lambda: writer.backlog == 0)
        writer.write("!")
        assert os.read(master, 16) == b"!"


def test_a_terminal_that_is_gone_is_written_to_no_more() -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as file:
        writer = PatientWriter(file)
        writer.start()
        os.close(master)
        writer.write("x")
        writer.write("y" * 100_000)
        writer.stop()
        assert writer.gone
        assert writer.backlog == 0


def test_the_end_wakes_who_waits_for_keys() -> None:
    event = PolledEvent()
    for _ in range(2):
        assert not select.select([event], [], [], 0.0)[0]
        event.set()
        assert select.select([event], [], [], 0.0)[0]
        assert event.is_set()
        event.clear()
