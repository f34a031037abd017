"""Any size of the terminal, and sizes that change while gputop runs."""

from __future__ import annotations

import pytest

from tests.pty.conftest import GPUTOP, Launch
from tests.pty.terminal import Pty

SIZES = [(160, 48), (80, 24), (300, 80), (20, 5), (80, 24)]


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (300, 80), (20, 5)])
def test_starts_at(launch: Launch, columns: int, lines: int) -> None:
    terminal = launch(columns=columns, lines=lines)
    terminal.wait_for(lambda: terminal.text().strip(), "something")
    if columns >= 80:
        terminal.wait_text("LIVE", "GPU", "PID")
    terminal.send("q")
    assert terminal.exit_code() == 0
    assert "Traceback" not in terminal.text()


def test_resized_while_running(launch: Launch) -> None:
    terminal = launch(columns=80, lines=24)
    terminal.wait_text("LIVE")
    for columns, lines in SIZES:
        seen = terminal.bytes_out
        terminal.resize(columns, lines)
        terminal.wait_for(lambda seen=seen: terminal.bytes_out > seen, f"drawn at {columns}x{lines}")
        if columns >= 80:
            terminal.wait_text("LIVE", "PID")
            terminal.wait_for(lambda: any(len(row.rstrip()) > terminal.columns * 0.8 for row in terminal.rows()), "full width")
    terminal.send("q")
    assert terminal.exit_code() == 0


def test_what_the_environment_says_of_another_size_does_not_count(launch: Launch) -> None:
    terminal = launch(columns=100, lines=30, env={"COLUMNS": "60", "LINES": "20"})
    for columns, lines in ((100, 30), (120, 40)):
        terminal.resize(columns, lines)
        terminal.wait_for(lambda: any(len(row.rstrip()) > terminal.columns * 0.9 for row in terminal.rows()), "full width")
        terminal.wait_for(lambda: "q quit" in terminal.rows()[-1], "the keys in the last line")
    terminal.send("q")
    assert terminal.exit_code() == 0


def test_a_terminal_that_tells_no_size(env: dict[str, str]) -> None:
    """`ssh -tt` from a cron job, a serial line."""
    with Pty([GPUTOP], columns=0, lines=0, env=env) as terminal:
        terminal.wait_for(lambda: terminal.bytes_out > 2000, "a screen")
        terminal.send("q")
        assert terminal.exit_code() == 0
