"""The why view: the walk to the cause, and what would come back without it."""

from __future__ import annotations

from itertools import groupby

import pytest
from msgspec.structs import replace

from gputop.findings.verdict import Evidence, Ledger, PathStep, page_of
from gputop.model.stream import Mark
from gputop.tui.draw.why import ledger
from gputop.tui.why_box import WhyScreen
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_sizes_fuzz import crowd, shown


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
        told = lines[lines.index("path to the cause") + 1 : lines.index("what to do")]
        assert told[0].startswith(f"  {path[0].name} ({path[0].pid}) ")
        assert any(line.startswith(f"  └ {path[1].name} ({path[1].pid}) ") for line in told)
        assert any(line.strip().startswith("without ") for line in told)
        assert max(map(len, told)) <= app.screen.text_width
        assert lines.index("what to do") + 2 < size[1] - 4, "the fix is seen without scrolling"
        assert any(page_of("cpu-contention") in line for line in lines)


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
        assert f"{evil} (7) probably waits 50 % of the time for {evil} (8)" in told


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
    for ago_ns, text in ((5, "experiment begins: x"), (4, "experiment proved, 182 → 311 steps/min, 1.7×, 1.6 to 1.8: x"), (3, "y")):
        session.marks.append(Mark(session.now_ns - ago_ns, text))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        lines = text_of(app.screen)
        told = lines[lines.index("experiments") + 1 : lines.index("GPU time lost since the start") - 1]
        assert [line[11:] for line in told] == ["proved, 182 → 311 steps/min, 1.7×, 1.6 to 1.8: x"]


def test_a_cause_that_cost_nothing_to_speak_of_is_not_listed() -> None:
    lines = ["".join(text for text, _ in line) for line in ledger(Ledger(10.0, 4.04, {"gil-contention": 4.0, "h2d-transfer": 0.04}))]
    assert any("gil-contention" in line for line in lines)
    assert not any("h2d-transfer" in line for line in lines)


async def test_evidence_is_told_in_words(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    found = (
        Evidence("runq_pct", 75.71, "%", "2 of 2 workers wanted a CPU and had none"),
        Evidence("read_bytes_per_s", float(3 << 30), "B/s", "they fetched from storage"),
        Evidence("idle_cpus", None, "CPUs", "idle among those it may use"),
    )
    verdict = replace(app.context.session.engine.verdict, evidence=found, step=None)
    monkeypatch.setattr(app.context.session, "verdict_at", lambda _: verdict)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        lines = [" ".join(line.split()) for line in text_of(app.screen)]
        at = lines.index("evidence") + 1
        assert lines[at : at + 3] == [
            "76 % 2 of 2 workers wanted a CPU and had none", "3.0G/s they fetched from storage",
            "not measured idle among those it may use",
        ]  # fmt: skip


@pytest.mark.parametrize("size", [(80, 24), (160, 48), (200, 60)])
async def test_cause_way_culprits_fix_and_gain_fit_one_screen(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    verdict = app.context.session.engine.verdict
    async with app.run_test(size=size) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        seen = "\n".join(text_of(app.screen)[: app.screen.text_height])
        commands = [fix.command for fix in verdict.fixes]
        for part in (verdict.cause, "path to the cause", "who takes it", "what to do", "GPU s would", *commands):
            assert part in seen


@pytest.mark.parametrize(("size", "reasons"), [((80, 24), False), ((160, 48), True), ((200, 60), True), ((300, 80), True)])
async def test_a_large_terminal_is_full(make_app: MakeApp, size: tuple[int, int], reasons: bool) -> None:
    """No third of it is empty, and what is left over tells why; a small one has all that it had."""
    app = make_app(scene.session(gpus=1))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        rows = [row.strip() for row in shown(app)]
        empty = max(len(list(run)) for blank, run in groupby([*rows, "x"], key=lambda row: not row) if blank) if "" in rows else 0
        assert empty < size[1] // 4
        text = "\n".join(rows)
        assert ("path to the cause" in text) == reasons
        assert all(part in text for part in ("INPUT-BOUND ← cpu-contention", "► ", "util", "power", "sync p99", "run-queue", "train.py"))
        assert sum("STARVING" in row for row in rows) == 4


@pytest.mark.parametrize("key", ["e", "question_mark", "K", "w"])
async def test_a_box_leaves_whole_lines(make_app: MakeApp, key: str) -> None:
    """Beside it no word of the dashboard is cut, and no wide character."""
    app = make_app(crowd())
    async with app.run_test(size=(101, 40)) as pilot:
        await pilot.press("down")
        await pilot.pause()
        before = shown(app)
        await pilot.press(key)
        await pilot.pause()
        *rows, keys = zip(before, shown(app), strict=True)
        assert ("Esc close" in keys[1]) is (key != "K")  # the box has its own; a question has them in its head
        boxed = [now for was, now in rows if now != was]
        assert len(boxed) > 3
        assert {row[0] + row[-1] for row in boxed} == {"╭╮", "││", "╰╯"}
