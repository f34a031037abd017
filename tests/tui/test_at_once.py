"""A key is answered at once: what takes long is done before, or after the answer stands."""

from __future__ import annotations

import sys

import pytest
from textual.css.stylesheet import Stylesheet

from gputop.diagnosis.engine import Engine
from gputop.tui.dashboard import DashboardScreen
from gputop.tui.terminal import TEXTUAL_ONLY
from gputop.tui.why_box import WhyScreen
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import part


async def test_a_note_waits_for_nobody(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen, DashboardScreen)
        with app.context.session.lock:  # the stream is being read
            app.screen.actions.action_sort()
            assert "[b]andwidth" in part(app, "keys")[0]
        await pilot.press("1")
        assert "1 does nothing here" in part(app, "keys")[0]


async def test_the_box_of_the_cause_stands_before_what_changes_would_bring_is_computed(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, computed, what_if = make_app(), list[str](), Engine.what_if

    def noted(engine: Engine, *asked: object) -> object:
        computed.append(app.screen.page.text if isinstance(app.screen, WhyScreen) else "")
        return what_if(engine, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "what_if", noted)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        assert "what to do" in computed[0]
        assert "what if" in app.screen.page.text
        count = len(computed)
        app.screen.refresh_text()
        assert "what if" in app.screen.page.text
        assert len(computed) == count, "it is kept for a while"


async def test_what_the_first_box_needs_is_prepared(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app._prepare()
        assert "gputop.tui.stacks_box" in sys.modules
        parsed = list[int]()
        monkeypatch.setattr(Stylesheet, "parse", lambda _: parsed.append(1))
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        assert not parsed or TEXTUAL_ONLY
