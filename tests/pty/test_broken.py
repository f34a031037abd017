"""A bug, or a limit of the system, ends gputop in one line with the right exit code and the terminal restored."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.system.errors import NO_MORE_MEMORY, NO_MORE_THREADS
from tests.pty.broken import PARTS
from tests.pty.conftest import GPUTOP, Launch, assert_left_as_found, assert_nothing_left
from tests.pty.terminal import ALTERNATE_SCREEN, CURSOR, Terminal
from tests.pty.tree import tree
from tests.wait import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
WRAP = 7  # DECAWM: Textual switches it on when it leaves, whether or not it was on before
HIDDEN = "driver's mouse"  # Textual's driver keeps this error to itself
SOON = ("feed", "drawing", "keys", "driver's start", "application's end")  # one of each kind; the others are `make soak`
ENDS = [pytest.param(name, marks=() if name in SOON else pytest.mark.soak) for name in PARTS if name not in ("user names", HIDDEN)]
LACKING = ("driver's start", "driver's end", "mount", "deaf")
BY_KEY = {"keys": "e", "key action": "e", "driver's end": "q", HIDDEN: "q", "application's end": "q"}  # part -> the key that it fails after


def lines(terminal: Terminal) -> list[str]:
    """What the program printed outside of its screen."""
    text = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", terminal.after.decode())
    return [line for line in map(str.strip, text.splitlines()) if line]


def start(launch: Launch, part: str, by: str = "bug") -> Terminal:
    """Start gputop with a part that fails, and press the key that it fails after."""
    path = {"PYTHONPATH": str(REPOSITORY), "BROKEN_BY": by}
    terminal = launch("-m", "tests.pty.broken", part, "--no-ebpf", command=sys.executable, env=path, columns=240)
    if part in BY_KEY:
        terminal.wait_text("LIVE", "driver")
        terminal.send(BY_KEY[part])
    return terminal


@pytest.mark.parametrize("part", ENDS)
def test_an_error_anywhere_ends_in_a_line(launch: Launch, part: str) -> None:
    terminal = start(launch, part)
    assert terminal.exit_code() == 1
    terminal.wait_for(lambda: b"this is a bug" in terminal.after, "what happened")
    (said,) = lines(terminal)
    assert said.startswith("gputop: this is a bug: ZeroDivisionError: boom; its traceback is in ")
    errors = Path(said.split(" is in ")[1].split(": send ")[0])
    assert "ZeroDivisionError: boom\n" in errors.read_text()
    assert_left_as_found(terminal)


def test_an_error_that_the_driver_hides_gives_the_terminal_back(launch: Launch) -> None:
    terminal = start(launch, HIDDEN)
    assert terminal.exit_code() == 0
    terminal.wait_for(lambda: ALTERNATE_SCREEN not in terminal.modes, "the screen left")
    assert_left_as_found(terminal)


@pytest.mark.parametrize(("by", "told"), [("memory", NO_MORE_MEMORY), ("threads", NO_MORE_THREADS), ("exit", "")])
@pytest.mark.parametrize("part", ["feed", *(pytest.param(name, marks=pytest.mark.soak) for name in LACKING)])
def test_what_is_lacking_anywhere_gives_the_terminal_back(launch: Launch, part: str, by: str, told: str) -> None:
    if by == "exit" and part in ("feed", "deaf"):
        pytest.skip("a thread that leaves by SystemExit ends alone")
    terminal = start(launch, part, by)
    assert terminal.exit_code() == 1
    terminal.wait_for(lambda: ALTERNATE_SCREEN not in terminal.modes, "the screen left")
    assert lines(terminal) == ([f"gputop: {told}"] if told else [])
    assert_left_as_found(terminal)


def test_an_error_of_the_collectors_threads_is_said_and_the_screen_goes_on(launch: Launch, tmp_path: Path) -> None:
    fake = tmp_path / "collector.py"
    fake.write_text(
        "import sys\nimport threading\nimport gputop.cli\nfrom gputop.collector.beat import Collector\nrun = Collector.run\n"
        "def begin(self, *a):\n"
        "    threading.Timer(1.0, lambda: 1 / 0).start()\n    return run(self, *a)\n"
        "Collector.run = begin\nsys.exit(gputop.cli.main())\n"
    )
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\nexec {sys.executable} {fake} collect --no-ebpf\n")
    ssh.chmod(0o755)
    terminal = launch("--host", "node7", env={"PATH": f"{ssh.parent}:{os.environ['PATH']}"}, columns=240)
    terminal.wait_text("the collector stopped (gputop: this is a bug: ZeroDivisionError: division by zero; its traceback is in ")
    terminal.wait_text("LIVE")
    terminal.send("q")
    assert terminal.exit_code() == 0
    assert_left_as_found(terminal)


@pytest.fixture
def few() -> Iterator[Path]:
    """A cgroup of its own that counts processes and threads."""
    folder = Path("/sys/fs/cgroup/pids") / f"gputop-test-{os.getpid()}"
    if not Path("/sys/fs/cgroup/pids").exists():
        folder = Path("/sys/fs/cgroup") / folder.name
    try:
        folder.mkdir()
        (folder / "pids.max").write_text("max")
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield folder
    deadline = time.monotonic() + PATIENCE_S
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    folder.rmdir()


@pytest.mark.parametrize("most", [1, *(pytest.param(most, marks=pytest.mark.soak) for most in (2, 3, 4, 5, 6, 8, 20))])
def test_few_threads_are_a_line_or_are_enough(few: Path, launch: Launch, most: int) -> None:
    (few / "pids.max").write_text(str(most))
    start = f'echo $$ > {few}/cgroup.procs; exec "$0" --no-ebpf'
    terminal = launch("-c", start, GPUTOP, command="sh", columns=240)
    terminal.wait_for(lambda: terminal.process.poll() is not None or "LIVE" in terminal.text(), "an end, or a screen")
    if terminal.process.poll() is None:
        terminal.send("s")
        terminal.wait_text("stacks: ")
        terminal.send("\x1b")
        terminal.wait_for(lambda: "stacks: " not in terminal.text(), "the dashboard")
        terminal.send("R")
        terminal.wait_for(lambda: "saved " in terminal.text() or "no more processes" in terminal.text(), "what came of it")
        terminal.send("q")
        assert terminal.exit_code() == 0
    else:
        assert terminal.exit_code() == 1
        assert lines(terminal) == [f"gputop: {NO_MORE_THREADS}"]
    assert "this is a bug" not in terminal.text()
    assert_left_as_found(terminal)


def ours(terminal: Terminal) -> int | None:
    """The pid of the screen that a shell has started, once it runs."""
    found = [pid for pid in tree(terminal.pid) if _is_screen(pid)]
    return found[0] if found else None


def _is_screen(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"/gputop") for word in words) and b"collect" not in words and b"sh" not in words


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
@pytest.mark.parametrize("after_s", [0.3, *(pytest.param(after_s, marks=pytest.mark.soak) for after_s in (0.1, 0.5))])
def test_a_signal_at_any_moment_of_its_start_leaves_the_terminal_as_it_was(launch: Launch, number: signal.Signals, after_s: float) -> None:
    terminal = launch("-c", f"trap : INT QUIT; {GPUTOP} --no-ebpf; read -r end", command="sh")
    terminal.wait_for(lambda: ours(terminal), "started")
    pid = ours(terminal)
    assert pid is not None
    family = tree(terminal.pid)[1:]
    time.sleep(after_s)
    os.kill(pid, number)
    assert_nothing_left(terminal, family)
    terminal.wait_for(lambda: terminal.termios_now() == terminal.termios_before, "the line settings as they were")
    terminal.wait_for(lambda: terminal.modes <= {CURSOR, WRAP} and CURSOR in terminal.modes, "the modes as they were")
    assert "Traceback" not in terminal.text()
