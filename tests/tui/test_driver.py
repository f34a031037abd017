"""When the terminal driver resumes."""

from __future__ import annotations

import os
import pty
from types import SimpleNamespace

import pytest
from textual.drivers.linux_driver import LinuxDriver

from gputop.tui.driver import TerminalDriver


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
