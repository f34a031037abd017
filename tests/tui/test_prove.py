"""`p` in the why view: what is asked, what is shown, and when nothing may be tried."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputop.prove import running
from gputop.prove.change import Plan, Reached, Refusal, TargetProcess
from gputop.prove.statistics import estimate
from gputop.prove.trial import Arm, Outcome, Pair
from gputop.tui.box import ConfirmScreen
from gputop.tui.prove_box import ProveScreen
from gputop.tui.why_box import WhyScreen
from tests.tui.conftest import MakeApp

PLAN = Plan("idle-priority", "fluent-bit\x1b[31m (903) to idle priority", (), may_keep=True)
PAIR = Pair("off-on", *(Arm(on, 2.0, {"sync": 6}, 3.0, 2.0, 30.0, steps={"sync": steps}) for on, steps in ((False, 6.0), (True, 12.0))))


def said(screen: ProveScreen) -> str:
    return "\n".join("".join(text for text, _ in line) for line in screen.lines())


async def opened(pilot: Pilot[None]) -> ProveScreen:
    """The box, when it has found out what to try."""
    await pilot.press("e")
    await pilot.press("p")
    for _ in range(200):
        await pilot.pause(0.02)
        top = pilot.app.screen
        if isinstance(top, ConfirmScreen) or (isinstance(top, ProveScreen) and "looking for" not in said(top)):
            break
    return next(screen for screen in pilot.app.screen_stack if isinstance(screen, ProveScreen))


@pytest.mark.parametrize(("readonly", "told"), [(True, "--readonly"), (False, "this is the past")])
async def test_nothing_is_tried_readonly_or_in_the_past(make_app: MakeApp, readonly: bool, told: str) -> None:
    app = make_app(readonly=readonly)
    async with app.run_test(size=(80, 24)) as pilot:
        if not readonly:
            await pilot.press("space")
        screen = await opened(pilot)
        assert told in said(screen)
        assert not any(isinstance(one, ConfirmScreen) for one in app.screen_stack)
        await pilot.press("p")
        assert isinstance(app.screen, WhyScreen)
        assert "p: prove" not in app.screen.first_line


async def test_why_there_is_no_experiment_is_said(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "planned_for", lambda _case: Refusal("you may not"))
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        assert ": you may not" in said(await opened(pilot))


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_it_asks_first_and_shows_the_result(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    def experiment(*_: object) -> Iterator[Pair | Outcome]:
        yield PAIR
        yield Outcome("proved", "", [PAIR] * 3, "steps", "sync", estimate([0.69, 0.7, 0.68], (3, 4, 6, 8)), 18.0)

    monkeypatch.setattr(running, "planned_for", lambda _case: PLAN)
    monkeypatch.setattr(running, "experiment", experiment)
    app = make_app()
    async with app.run_test(size=size) as pilot:
        screen = await opened(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        assert app.screen.names[0].endswith("(903) to idle priority")
        await pilot.pause()
        await pilot.press("y")
        for _ in range(200):
            await pilot.pause(0.02)
            if "proved" in said(screen):
                break
        assert "180 → 360 steps/min, 2×, 1.9 to 2" in said(screen)
        assert "3 of 3 pairs: proved" in said(screen)


REACHED = tuple(
    Reached(TargetProcess(pid, 1, "job\x1b[31m" if pid == 1007 else "job"), "bob", f"reason-of-{pid}", True, False, 0.01 * (pid - 1000))
    for pid in range(1000, 1060)
)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_a_question_lists_each_process_and_scrolls(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    monkeypatch.setattr(running, "planned_for", lambda _case: replace(PLAN, reached=REACHED))
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await opened(pilot)
        await pilot.pause()
        box = app.screen
        assert isinstance(box, ConfirmScreen)
        assert "60 processes change: 60 of bob" in box.page.text
        assert all(f"bob  job ({pid})  {pid - 1000} % CPU  reason-of-{pid}" in box.page.text for pid in range(1000, 1060) if pid != 1007)
        assert "\x1b" not in box.page.text
        seen = set[str]()
        for _ in range(20):
            for y in range(box.page.size.height):
                seen.update("".join(segment.text for segment in box.page.render_line(y)).split())
            await pilot.press("pagedown")
            await pilot.pause()
            assert app.screen is box
        assert {f"reason-of-{pid}" for pid in range(1000, 1060)} <= seen
        assert "".join(segment.text for segment in box.page.render_line(1)).startswith("[y] yes   [n] no (Enter)")
        await pilot.press("enter")  # the default is no
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)


async def test_no_closes_it(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "planned_for", lambda _case: PLAN)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.pause()
        await pilot.press("n")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
