"""The why view: the walk to the cause, and what would come back without it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputop.diagnosis.model import Ledger, PathStep
from gputop.model.stream import Mark
from gputop.tui.why import WhyScreen
from tests.tui.conftest import MakeApp


def text_of(screen: WhyScreen) -> list[str]:
    return ["".join(text for text, _ in line) for line in screen.lines()]


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_the_walk_stands_under_the_verdict(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    path = app.context.session.engine.verdict.path
    assert len(path) > 1
    async with app.run_test(size=size) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        lines = text_of(app.screen)
        told = lines[lines.index("the way there") + 1 : lines.index("what to do")]
        assert told[0].startswith(f"  {path[0].name} ({path[0].pid}) ")
        assert any(line.startswith(f"  └ {path[1].name} ({path[1].pid}) ") for line in told)
        assert any(line.strip().startswith("without ") for line in told)
        assert max(map(len, told)) <= app.screen.text_width
        assert lines.index("what to do") + 2 < size[1] - 4, "the fix is seen without scrolling"


async def test_names_in_a_walk_are_no_markup(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, evil = make_app(), "[bold]x[/] \\[red]"
    verdict = app.context.session.engine.verdict
    path = (PathStep(7, evil, 0.5, "waits", f"{evil} (8)", measured=False),)
    monkeypatch.setattr(app.context.session, "verdict_at", lambda _: replace(verdict, path=path))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        told = " ".join(" ".join(text_of(app.screen)).split())
        assert f"{evil} (7) seems to wait 50 % of the time for {evil} (8)" in told


async def test_causes_are_told_by_what_would_come_back(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app, ledger = make_app(), Ledger(10.0, 8.0, {"disk-io": 2.0, "cpu-contention": 4.0, "unexplained": 2.0})
    monkeypatch.setattr(type(app.context), "losses_and_incidents", lambda *_: (ledger, []))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        rows = [line.split("without it ") for line in text_of(app.screen) if " s " in line and "%" in line and line.startswith("  ")]
        causes = [(row[0].split()[0], row[1:]) for row in rows if row[0].split()[0] in ledger.by_cause]
        assert causes == [("cpu-contention", ["up to 1.67×"]), ("disk-io", ["up to 1.25×"]), ("unexplained", [])]
        assert any("without any of these up to 2.5×" in line for line in text_of(app.screen))


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_what_changes_would_bring_stands_under_what_to_do(make_app: MakeApp, size: tuple[int, int]) -> None:
    """With its band; and with what it assumes where there is room."""
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        lines = text_of(app.screen)
        found = app.context.session.engine.what_if(app.context.session.engine.verdict)
        told = lines[lines.index("what if") + 1 :][: len(found)]
        assert len(found) > 1
        assert lines.index("what if") > lines.index("what to do")
        assert [line.strip().startswith(f"{one.change}: ") for line, one in zip(told, found, strict=True)] == [True] * len(found)
        assert max(map(len, told)) <= app.screen.text_width
        assert told[0].endswith(found[0].assumes) == (size[0] > 100)


async def test_experiments_until_the_moment_shown_are_listed(make_app: MakeApp) -> None:
    app = make_app()
    session = app.context.session
    for ago_ns, text in ((5, "experiment begins: x"), (4, "experiment proved, +71 % ± 6: x"), (3, "y")):
        session.marks.append(Mark(session.now_ns - ago_ns, text))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        lines = text_of(app.screen)
        told = lines[lines.index("experiments") + 1 : lines.index("GPU time lost since the start") - 1]
        assert [line[11:] for line in told] == ["proved, +71 % ± 6: x"]
