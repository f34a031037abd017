"""After many small changes the screen shows what a fresh drawing shows, in the colours and characters that were asked for."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.bench.crowd import crowd
from tests.bench.stage import stage
from tests.pty.conftest import GPUTOP, Launch, clean
from tests.pty.terminal import Terminal
from tests.require import require
from tests.wait import PATIENCE_S

ARROWS = ["\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[1;2C", "\x1b[1;2D", "\x1b[F", "\x1b[H", "\x1b[5~", "\x1b[6~"]
KEYS = [*ARROWS, *" nN+-jko.,\\tbgGeszrR?/", "py", "\r", "\t", "\x1b", "x", "5"]
"""All keys of the help and some others, without q, Ctrl-C and the palette, whose first entries quit."""


def started(terminal: Terminal) -> Terminal:
    """Wait for data."""
    terminal.wait_text("LIVE", "H200")
    return terminal


def zoomed(terminal: Terminal) -> Terminal:
    """Choose a time base: it does not grow any more with what there is, which is more with each drawing."""
    terminal.send("-")
    return terminal


def paused(terminal: Terminal) -> Terminal:
    """Pause the screen, and wait until nothing more is written."""
    terminal.send(" ")
    terminal.wait_text("PAUSED")
    terminal.wait_still(1.2)
    return terminal


def moved(terminal: Terminal) -> Terminal:
    """Wait for many small changes, then pause."""
    seen = len(terminal.bursts)
    terminal.wait_for(lambda: len(terminal.bursts) > seen + 30, "many small changes")
    return paused(terminal)


@pytest.mark.parametrize("colours_of", ["", "truecolor"], ids=["terminal's", "painted"])
@pytest.mark.parametrize(("columns", "lines"), [(160, 48), (80, 24)])
def test_grown_screen_is_the_drawn_screen(launch: Launch, columns: int, lines: int, colours_of: str) -> None:
    terminal = started(launch(columns=columns, lines=lines, probes=columns == 160, env={"COLORTERM": colours_of}))
    drawn_anew(moved(zoomed(terminal)))


@pytest.mark.parametrize("look", [(), ("--ascii",), ("--theme", "gputop-night")], ids=" ".join)
def test_a_heat_map_that_moved_is_the_drawn_map(tmp_path: Path, look: tuple[str, ...]) -> None:
    require("cc")
    with stage(8, [os.getpid()]) as staged:
        env = clean(staged, tmp_path) | {"COLORTERM": "truecolor", "GPUTOP_NO_EBPF": "1"}
        terminal = Terminal([GPUTOP, *look], env=env, cwd=tmp_path, columns=120, lines=35)
        try:
            started(terminal)
            terminal.wait_text("z: one as a chart")
            drawn_anew(moved(zoomed(terminal)))
        finally:
            terminal.close()


def test_rows_that_come_and_go_leave_nothing_behind(launch: Launch) -> None:
    terminal = zoomed(started(launch()))
    with crowd(1, busy_us=-1) as (hog,):
        terminal.wait_text(f" {hog} ")
        looks = drawn_anew(paused(terminal))
        terminal.send(" ")
    terminal.wait_for(lambda: f" {hog} " not in terminal.text(), "it is gone")
    assert drawn_anew(paused(terminal)) != looks


def drawn_anew(terminal: Terminal) -> list[list[tuple[str, str, str]]]:
    """Characters and colours of a paused screen without its first line, after a check that a fresh drawing changes none."""
    before, looks = [], redrawn(terminal)
    deadline = time.monotonic() + PATIENCE_S
    while looks != before and time.monotonic() < deadline:  # what is known of the last seconds comes late
        before, looks = looks, redrawn(terminal)
    terminal.blank()
    os.kill(terminal.pid, signal.SIGCONT)  # as after Ctrl-Z: all is drawn
    terminal.wait_for(lambda: looks_of(terminal) == before, "a fresh drawing of the same")
    return before


def redrawn(terminal: Terminal) -> list[list[tuple[str, str, str]]]:
    """Have what has changed drawn: opening and closing the filter changes nothing else."""
    terminal.send("/\r")
    terminal.wait_still(0.8)
    return looks_of(terminal)


def looks_of(terminal: Terminal) -> list[list[tuple[str, str, str]]]:
    """Character, colour and background of each cell; the colour of a blank is not seen."""
    screen = terminal.screen
    cells = [[screen.buffer[y][x] for x in range(terminal.columns)] for y in range(1, terminal.lines)]
    return [[(cell.data, cell.fg if cell.data.strip() else "", cell.bg) for cell in row] for row in cells]


def test_a_box_is_all_that_is_painted_when_it_opens(launch: Launch) -> None:
    terminal = zoomed(started(launch()))
    terminal.send(" ")
    terminal.wait_text("PAUSED")
    terminal.wait_still(1.2)
    before, written = terminal.rows(), terminal.bytes_out
    terminal.send("?")
    terminal.wait_text("keys and signs")
    terminal.wait_still(0.5)
    opened = terminal.rows()
    top = next(i for i, text in enumerate(opened) if "╭" in text)
    assert opened[1:top] == before[1:top]
    left = opened[top].index("╭")
    assert [text[:left] for text in opened[1:]] == [text[:left] for text in before[1:]]
    assert terminal.bytes_out - written < 40_000  # the box is 17,000, painted twice at most; the screen around it would be 33,000 more
    terminal.resize(161, 48)
    terminal.wait_still()
    terminal.blank()
    terminal.resize(160, 48)
    terminal.wait_text("keys and signs")
    terminal.wait_still(0.8)
    around = [text[:left] for text in terminal.rows()[1:]]
    terminal.send("\x1b")
    terminal.wait_for(lambda: "keys and signs" not in terminal.text(), "the dashboard again")
    terminal.wait_still(0.8)
    assert [text[:left] for text in terminal.rows()[1:]] == around


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_any_keys_in_any_order(launch: Launch, seed: int) -> None:
    terminal = started(launch(columns=120, lines=32, probes=True))
    chance = random.Random(seed)
    for _ in range(150):
        terminal.send(chance.choice(KEYS))
        time.sleep(0.02)  # as fast as keys repeat
    assert terminal.process.poll() is None, terminal.describe()
    assert "Traceback" not in terminal.text()
    codes: list[int] = []
    for _ in range(4):  # an Esc alone is a key only after a pause; a busy machine may take some of them and what follows for one key
        for _ in range(6):
            terminal.send("\x1b")
            time.sleep(0.2)
        terminal.send("\x03")
        with suppress(AssertionError):
            codes.append(terminal.exit_code(PATIENCE_S / 4))
            break
    assert codes, terminal.describe()
    assert codes[0] in (0, 130)


def test_no_color_means_none(launch: Launch) -> None:
    terminal = started(launch(env={"NO_COLOR": "1"}))
    assert colours(terminal) == {("default", "default")}
    for key, shown in {"?": "keys and signs", "e": "severity", "z": "source:", "\x10": "Search for commands"}.items():
        terminal.send(key)
        terminal.wait_text(shown)
        assert colours(terminal) == {("default", "default")}, key
        terminal.send("\x1b")
        terminal.wait_for(lambda shown=shown: shown not in terminal.text(), "the dashboard again")


def colours(terminal: Terminal) -> set[tuple[str, str]]:
    """(text, background) of every cell."""
    return {(cell.fg, cell.bg) for row in list(terminal.screen.buffer.values()) for cell in list(row.values())}


def test_ascii_means_ascii(launch: Launch) -> None:
    terminal = started(launch("--ascii"))
    seen = len(terminal.bursts)
    terminal.wait_for(lambda: len(terminal.bursts) > seen + 10, "a few drawings")
    assert beyond_ascii(terminal) == []
    boxes = {"?": "keys and signs", "e": "severity", "w": "took CPU", "s": "stacks:", "z": "source:", "K": "[y] yes"}
    terminal.send("\x1b[B")  # the trainer that has the GPU: whoever stands further down may end meanwhile
    for key, shown in (boxes | {"\x10": "Search for"}).items():
        terminal.send(key)
        terminal.wait_text(shown)
        assert beyond_ascii(terminal) == [], key
        terminal.send("\x1b")
        terminal.wait_for(lambda shown=shown: shown not in terminal.text(), "the dashboard again")


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"LC_ALL": "", "LC_CTYPE": "", "LANG": "C"}, {"LC_ALL": "", "LC_CTYPE": "de_DE.ISO-8859-1"}]
)
def test_a_locale_that_is_no_utf8_means_ascii(launch: Launch, locale: dict[str, str]) -> None:
    terminal = started(launch(env=locale))
    assert beyond_ascii(terminal) == []
    asked = started(launch("--no-ascii", env=locale))
    asked.wait_text("●")


def beyond_ascii(terminal: Terminal) -> list[str]:
    return sorted({character for character in terminal.text() if ord(character) > 126})


def test_a_terminal_that_hangs_slows_the_drawing_only(launch: Launch, env: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "calls"
    with Path(env["GPUTOP_NVML_CONTROL"]).open("a") as control:
        control.write(f"log {log}\n")
    terminal = started(launch())
    terminal.reading.clear()
    before = time.monotonic_ns()

    def sampled() -> int:
        calls = [line.split() for line in log.read_text().splitlines()]
        return sum(kind == "UtilizationRates" and gpu == "0" and int(t_ns) > before for kind, gpu, t_ns in calls)

    deadline = time.monotonic() + PATIENCE_S
    while sampled() < 30 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sampled() >= 30
    terminal.reading.set()
    terminal.send("q")
    assert terminal.exit_code() == 0


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is missing: apt install tmux")
def test_in_tmux(env: dict[str, str], tmp_path: Path) -> None:
    tmux = ["tmux", "-f", "/dev/null", "-S", str(tmp_path / "tmux")]

    def screen() -> str:
        return subprocess.run([*tmux, "capture-pane", "-p"], env=env, capture_output=True, text=True, check=False).stdout

    subprocess.run([*tmux, "new-session", "-d", "-x", "120", "-y", "40", f"{GPUTOP}; echo left with $?; exec cat"], env=env, check=True)
    try:
        wait(lambda: "LIVE" in screen() and "H200" in screen(), screen)
        subprocess.run([*tmux, "send-keys", "Space"], env=env, check=True)
        wait(lambda: "PAUSED" in screen(), screen)
        subprocess.run([*tmux, "send-keys", "q"], env=env, check=True)
        wait(lambda: "left with 0" in screen(), screen)
        assert "LIVE" not in screen()
    finally:
        subprocess.run([*tmux, "kill-server"], env=env, check=False)


def wait(condition, screen, timeout_s: float = PATIENCE_S) -> None:  # type: ignore[no-untyped-def]
    """Until ``condition`` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, screen()
        time.sleep(0.05)
