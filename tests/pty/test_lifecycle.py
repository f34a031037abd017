"""However gputop ends, the terminal is restored and no process is left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pty.conftest import GPUTOP, Launch, assert_left_as_found, assert_nothing_left
from tests.pty.terminal import ALTERNATE_SCREEN, FOCUS, MOUSE, PASTE, Terminal
from tests.pty.tree import tree
from tests.workloads.environment import ROOT


def live(terminal: Terminal) -> list[int]:
    """Wait for the first data; gives the pids of the screen and its collector."""
    terminal.wait_text("LIVE", "driver")
    family = tree(terminal.pid)
    assert len(family) >= 2, "the collector is a process of its own"
    return family


def test_q_quits(launch: Launch) -> None:
    terminal = launch(probes=True)
    family = live(terminal)
    assert ALTERNATE_SCREEN in terminal.modes
    terminal.send("q")
    assert terminal.exit_code() == 0
    assert_left_as_found(terminal)
    assert_nothing_left(terminal, family)


def test_standard_error_may_go_to_a_file(launch: Launch, tmp_path: Path) -> None:
    terminal = launch("-c", f"exec {GPUTOP} 2>{tmp_path / 'errors'}", command="sh")
    live(terminal)
    terminal.send("?")
    terminal.wait_text("keys and signs")
    terminal.send("\x1b")
    terminal.wait_for(lambda: "keys and signs" not in terminal.text(), "the dashboard again")
    terminal.send("q")
    assert terminal.exit_code() == 0
    assert_left_as_found(terminal)
    assert (tmp_path / "errors").read_text() == ""


def test_ctrl_c_quits(launch: Launch) -> None:
    terminal = launch()
    family = live(terminal)
    terminal.send("\x03")
    assert terminal.exit_code() in (0, 130)
    assert_left_as_found(terminal)
    assert_nothing_left(terminal, family)


LATER = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGABRT, *(pytest.param(one, marks=pytest.mark.soak) for one in LATER)])
def test_a_signal_ends_it_cleanly(launch: Launch, number: signal.Signals) -> None:
    terminal = launch(probes=True)
    family = live(terminal)
    os.kill(terminal.pid, number)
    terminal.exit_code()
    assert_left_as_found(terminal)
    assert_nothing_left(terminal, family)
    assert "Traceback" not in terminal.text()


@pytest.mark.parametrize("ignore_hup", [False, True], ids=["hup", "nohup"])
def test_gone_two_seconds_after_its_terminal(launch: Launch, ignore_hup: bool) -> None:
    terminal = launch(ignore_hup=ignore_hup, probes=True)
    family = live(terminal)
    terminal.hang_up()
    assert_nothing_left(terminal, family, timeout_s=2.0)


def test_killed_screen_leaves_no_collector(launch: Launch) -> None:
    terminal = launch(probes=True)
    family = live(terminal)
    terminal.process.kill()
    assert_nothing_left(terminal, family)


def test_killed_collector_is_reported_and_restarted(launch: Launch) -> None:
    terminal = launch(probes=True)
    family = live(terminal)
    (collector,) = [pid for pid in family if b"collect" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(collector, signal.SIGKILL)
    terminal.wait_for(lambda: "collector" in terminal.text(), "the loss of the collector on screen")
    terminal.wait_for(lambda: set(tree(terminal.pid)) - set(family), "a new collector")
    terminal.wait_for(lambda: "LIVE" in terminal.text(), "live data again")
    terminal.send("q")
    assert terminal.exit_code() == 0


@pytest.mark.parametrize(("host", "remedy"), [(None, "kill -CONT"), ("node7", "check the connection to")])
def test_a_collector_that_stops_answering_is_not_called_live(launch: Launch, tmp_path: Path, host: str | None, remedy: str) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nuntil [ "$1" = gputop ]; do shift; done\nshift\nexec {GPUTOP} "$@"\n')
    ssh.chmod(0o755)
    terminal = launch(*(["--host", host] if host else []), env={"PATH": f"{ssh.parent}:{os.environ['PATH']}"})
    family = live(terminal)
    (collector,) = [pid for pid in family if b"collect" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(collector, signal.SIGSTOP)
    try:
        terminal.wait_text("SILENT 3 s", "no reading for 3 s", remedy)
        assert "LIVE" not in terminal.text()
    finally:
        os.kill(collector, signal.SIGCONT)  # a stopped one would outlast a test that fails
    terminal.wait_for(lambda: "LIVE" in terminal.text() and "no reading" not in terminal.text(), "live data again")
    terminal.send("q")
    assert terminal.exit_code() == 0


@pytest.fixture
def shell(launch: Launch) -> Iterator[Terminal]:
    """A bash with job control at its prompt, which leaves when the test has ended well."""
    if not shutil.which("bash"):
        pytest.skip("job control needs bash")
    bash = launch("--norc", "--noprofile", "-i", command="bash", env={"PS1": "ready> "})
    bash.wait_text("ready>")
    yield bash
    bash.send("exit\n")
    bash.exit_code()


@pytest.mark.parametrize("stop", ["ctrl-z", "SIGSTOP"])
def test_suspend_and_resume(shell: Terminal, stop: str) -> None:
    before = shell.termios_now()
    shell.send(f"{GPUTOP}\n")
    shell.wait_text("LIVE", "GPU")
    if stop == "ctrl-z":
        shell.send("\x1a")
        shell.wait_text("Stopped")
        assert ALTERNATE_SCREEN not in shell.modes
    else:
        os.kill(tree(shell.pid)[1], signal.SIGSTOP)
        shell.wait_text("Stopped")
    # The shell says "Stopped" before it prepares the terminal for its prompt.
    shell.wait_for(lambda: shell.termios_now() == before, "the terminal as it was")
    shell.blank()
    shell.send("fg\n")
    # What never changes must be painted again too: the keys, and the words of the header and the headings.
    shell.wait_for(lambda: {ALTERNATE_SCREEN, PASTE, FOCUS, *MOUSE} - {1002, 1016} <= shell.modes, "the modes again")
    shell.wait_text("LIVE", "gputop  ", "limits", "PID", "q quit")
    shell.send("q")
    shell.wait_for(lambda: ALTERNATE_SCREEN not in shell.modes, "quit")
    shell.wait_for(lambda: shell.termios_now() == before, "the shell's own line settings")


@pytest.mark.parametrize("start", ["", "&"])
def test_a_stopped_one_can_be_woken_and_killed(shell: Terminal, start: str) -> None:
    before = shell.termios_now()
    shell.send(f"{GPUTOP} {start}\n")
    if not start:
        shell.wait_text("LIVE", "GPU")
        shell.send("\x1a")
    shell.wait_for(lambda: any(map(_stopped, tree(shell.pid)[1:])), "stopped")
    (ours,) = [pid for pid in tree(shell.pid)[1:] if _stopped(pid)]
    shell.wait_for(lambda: shell.termios_now() == before, "the terminal as it was")
    ran = _times_run(ours)
    shell.send("bg\n")
    shell.wait_for(lambda: _times_run(ours) > ran and _stopped(ours), "stopped again: the terminal is another's")
    shell.send("kill %1\n")
    shell.wait_for(lambda: len(tree(shell.pid)) == 1, "ended, and its collector with it")
    shell.wait_for(lambda: shell.termios_now() == before, "the shell's own line settings")
    assert ALTERNATE_SCREEN not in shell.modes


def test_started_in_the_background_it_waits_for_fg(shell: Terminal) -> None:
    before = shell.termios_now()
    shell.send(f"{GPUTOP} &\n")
    shell.wait_for(lambda: any(map(_stopped, tree(shell.pid)[1:])), "stopped, for the terminal is another's")
    assert ALTERNATE_SCREEN not in shell.modes
    shell.send("fg\n")
    shell.wait_text("LIVE", "gputop  ", "limits", "PID", "q quit")
    shell.send("q")
    shell.wait_for(lambda: ALTERNATE_SCREEN not in shell.modes and shell.termios_now() == before, "quit, and the shell's own line settings")
    assert "bug" not in shell.text()


def _times_run(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[2])


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("arguments", [["--host", "node1"], ["--host", "node[1-2]"], pytest.param(["replay", "-"], marks=pytest.mark.soak)])
def test_a_screen_over_a_flood_is_left(launch: Launch, tmp_path: Path, arguments: list[str]) -> None:
    """A node that sends faster than is read holds nobody on the screen."""
    flood = f"cd {ROOT}; exec {sys.executable} -m tests.fleet.flood"
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nuntil [ "$1" = gputop ]; do shift; done\n{flood} "$@"\n')
    ssh.chmod(0o755)
    words = ["sh", "-c", f"({flood}) | {GPUTOP} replay -"] if arguments == ["replay", "-"] else [GPUTOP, *arguments]
    terminal = launch(*words[1:], command=words[0], env={"PATH": f"{ssh.parent}:{os.environ['PATH']}"})
    terminal.wait_for(lambda: "GPU" in terminal.text(), "the screen", 60)
    terminal.send("q")
    assert terminal.exit_code(60) == 0
    assert_left_as_found(terminal)
