"""The dashboard asks before it sends a signal, signals only the process that was shown, and says why it does not."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess

import pytest
from textual.pilot import Pilot

from gputop.prove.processes import read_process
from gputop.tui.app import GputopApp
from gputop.tui.box import ConfirmScreen
from gputop.tui.dashboard import DashboardScreen, send_signal
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import main, part
from tests.tui.test_replay import until
from tests.wait import PATIENCE_S


async def _ask(pilot: Pilot[int], app: GputopApp, key: str) -> None:
    await pilot.press("down", key)
    await pilot.pause()
    assert isinstance(app.screen, ConfirmScreen)


async def answer(pilot: Pilot[int], key: str) -> None:
    """Press a key once the question is on screen."""

    def asked() -> bool:
        return isinstance(box := pilot.app.screen, ConfirmScreen) and box.seen_s < math.inf

    await until(pilot, asked, "a question")
    await pilot.press(key)


async def test_signals_are_asked_for_and_reach_the_process(make_app: MakeApp) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        app = make_app()
        async with app.run_test(size=(160, 48)) as pilot:
            await pilot.pause()
            row = main(app).drawing.table.shown[0]
            row.pid, row.start_ticks = child.pid, read_process(child.pid).start_ticks
            app.context.view.selected = child.pid
            main(app).action_signal("TERM")
            await answer(pilot, "n")
            assert child.poll() is None
            main(app).action_signal("TERM")
            await answer(pilot, "y")
            await pilot.pause()
        assert child.wait(PATIENCE_S) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("size", [(45, 20), (80, 24)])
async def test_the_question_fits_the_terminal(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await _ask(pilot, app, "K")
        await pilot.pause()
        assert app.screen.query_one(".box").region in app.screen.region


@pytest.mark.parametrize("refused", [None, OSError(errno.ENOSYS, "no such call"), PermissionError(errno.EPERM, "a sandbox")])
def test_a_signal_is_for_the_process_that_was_shown(refused: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        assert refused is not None
        raise refused

    if refused is not None:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    else:
        monkeypatch.setattr(os, "kill", refuse)  # a number may be another's by now
    with subprocess.Popen(["sleep", "60"]) as child:
        started = read_process(child.pid).start_ticks
        assert send_signal("TERM", {child.pid: started + 1}) == f"SIGTERM sent to 0 of 1; {child.pid} has ended"
        assert child.poll() is None
        assert send_signal("TERM", {child.pid: started}) == "SIGTERM sent to 1 of 1"
        assert child.wait(PATIENCE_S) == -signal.SIGTERM
        assert send_signal("TERM", {child.pid: started}) == f"SIGTERM sent to 0 of 1; {child.pid} has ended"


async def test_a_process_that_took_over_the_pid_is_left_alone(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        row = main(app).drawing.table.shown[0]
        row.pid, row.start_ticks = os.getpid(), 1
        app.context.view.selected = os.getpid()
        main(app).action_signal("KILL")
        await answer(pilot, "y")
        await pilot.pause()
        assert "has ended" in part(app, "keys")[0]


@pytest.mark.parametrize(
    ("selected", "pattern", "said"),
    [(None, "", "select a process first"), (99_999, "", "has ended"), (scene.HOG, "worker", "not in the table")],
)
async def test_who_cannot_be_signalled_is_told_why(make_app: MakeApp, selected: int | None, pattern: str, said: str) -> None:
    app = make_app(selected=selected, pattern=pattern)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("K")
        await pilot.pause()
        assert isinstance(app.screen, DashboardScreen)
        assert said in part(app, "keys")[0]


async def test_readonly_sends_nothing(make_app: MakeApp) -> None:
    app = make_app(readonly=True)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("down", "K")
        await pilot.pause()
        assert isinstance(app.screen, DashboardScreen)
        assert "--readonly" in part(app, "keys")[0]
