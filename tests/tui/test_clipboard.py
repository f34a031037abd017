"""Copying a command to the clipboard: what the terminal gets, through tmux and screen too, and what is said."""

from __future__ import annotations

import base64
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from textual.app import App

from gputop.findings.verdict import Fix
from gputop.stream.offer import Offer
from gputop.tui import canvas, clipboard
from gputop.tui.draw import why
from gputop.tui.why_box import WhyScreen
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import part

TEXT = "chrt --idle --pid 0 812 # ü"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent to the terminal, in one outside of tmux."""
    out: list[str] = []
    monkeypatch.setattr(clipboard, "send", lambda _app, text: out.append(text))
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return out


def copied(sent: list[str]) -> list[str]:
    """The texts in OSC 52."""
    return [base64.b64decode(found).decode() for found in re.findall(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", "".join(sent))]


@pytest.mark.parametrize(
    ("term", "around"), [("xterm", []), ("tmux-256color", ["tmux;"]), ("screen.xterm-256color", ["tmux;", ""])]
)  # fmt: skip
def test_the_terminal_gets_the_text_through_what_is_around_it(monkeypatch: pytest.MonkeyPatch, term: str, around: list[str]) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    out = clipboard.sequences(TEXT, term)
    assert copied([out]) == [TEXT] * (1 + len(around))
    wrapped = [f"\x1bP{kind}" for kind in around]
    assert re.findall(r"\x1bP(?:tmux;)?", out) == wrapped
    assert out.count("\x1b\\") == len(wrapped)


@pytest.mark.parametrize("takes", [True, False])
def test_tmux_is_given_the_text_and_asked_to_pass_it_on(
    monkeypatch: pytest.MonkeyPatch, sent: list[str], tmp_path: Path, takes: bool
) -> None:  # fmt: skip
    """By default tmux ignores OSC 52 of a program in it; one that does not know -w gets the sequences."""
    program = tmp_path / "tmux"
    program.write_text(f'#!/bin/sh\n[ "$*" = "load-buffer -w -" ] && cat > {tmp_path}/buffer\nexit {0 if takes else 1}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("TMUX", "/tmp/socket,1,0")
    assert ("tmux" in clipboard.copy(App(), TEXT)) == takes
    assert (tmp_path / "buffer").read_text() == TEXT
    assert copied(sent) == ([] if takes else [TEXT, TEXT])


async def test_c_copies_the_command_that_is_shown(make_app: MakeApp, sent: list[str]) -> None:
    app = make_app()
    commands = why.commands(app.context.session.engine.verdict)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert commands[0] in part(app, "verdict")[2]
        await pilot.press("c")
        await pilot.pause()
        assert commands[0] in part(app, "keys")[0]
        await pilot.press("e")
        await pilot.press(str(len(commands)))
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        assert commands[-1] in app.screen.first_line
        await pilot.press("9")
        assert app.screen.first_line == "there is no command 9"
    assert copied(sent) == [commands[0], commands[-1]]


async def test_where_nothing_is_to_be_done_the_key_says_so(make_app: MakeApp, sent: list[str]) -> None:
    app = make_app(scene.session(starving=False))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c")
        await pilot.pause()
        assert "no command to copy" in part(app, "keys")[0]
    assert not sent


@pytest.mark.parametrize("key", ["c", "e"])
async def test_what_is_copied_is_what_stood_there_a_second_ago(
    make_app: MakeApp, sent: list[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The line changes under the hand, in the dashboard and in the box of `e`: what was read is taken, later the new one."""
    now_s = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now_s, process_time=lambda: 0.0)
    monkeypatch.setattr(canvas, "time", clock)
    session = scene.session()
    app = make_app(session)
    read, new = session.engine.verdict, replace(session.engine.verdict, fixes=(Fix("Yield", "chrt --idle --all-tasks --pid 0 4242"),))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press(*key.replace("c", ""))
        now_s += 5.0

        def redraw() -> None:
            app.screen_stack[0].drawing.draw_all()  # type: ignore[attr-defined]
            if isinstance(app.screen, WhyScreen):
                app.screen.refresh_text()

        redraw()
        monkeypatch.setattr(type(session.engine), "verdict", new)
        session.offers.append((session.now_ns, Offer(new.fixes[0], new, 0)))
        redraw()
        now_s += 0.9
        await pilot.press("c")
        now_s += 0.2
        redraw()
        await pilot.press("c")
    assert copied(sent) == [why.commands(read)[0], new.fixes[0].command]


async def test_twenty_of_twenty_commands_that_are_copied_stood_on_the_line(
    make_app: MakeApp, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict comes after the line was read and before the key, at moments of all kinds; some are drawn and some replaced at once."""
    now_s, luck = 1000.0, random.Random(7)
    monkeypatch.setattr(canvas, "time", SimpleNamespace(monotonic=lambda: now_s, process_time=lambda: 0.0))
    session = scene.session()
    app, before, read = make_app(session), session.engine.verdict, list[str]()
    async with app.run_test(size=(160, 40)) as pilot:
        await pilot.pause()

        def offer(pid: int) -> None:
            fix = Fix("Yield", f"chrt --idle --all-tasks --pid 0 {pid}")
            session.offers.append((session.now_ns, Offer(fix, replace(before, fixes=(fix,)), 0)))
            app.screen_stack[0].drawing.draw_all()  # type: ignore[attr-defined]

        for number in range(20):
            offer(4000 + number)
            now_s += luck.uniform(1.01, 9.0)
            read.append(part(app, "verdict")[2])
            hand_s, changes = luck.uniform(0.05, 0.95), luck.randint(1, 3)
            for change in range(changes):
                offer(5000 + 10 * number + change)
                now_s += hand_s / changes
            await pilot.press("c")
    got = copied(sent)
    assert len(got) == len(read) == 20
    assert [command in line for command, line in zip(got, read, strict=True)] == [True] * 20
