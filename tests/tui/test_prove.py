"""`p` in the why view: what is asked, what is shown, and when nothing may be tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputop.prove import running
from gputop.prove.advised import command_of
from gputop.prove.change import Case, Change, Plan, Reached, Refusal, TargetProcess
from gputop.prove.statistics import estimate
from gputop.prove.trial import Arm, Outcome, Pair
from gputop.tui.box import ConfirmScreen
from gputop.tui.draw import proof
from gputop.tui.prove_box import ProveScreen
from gputop.tui.why_box import WhyScreen
from tests.tui.conftest import MakeApp
from tests.wait import PATIENCE_S

PLAN = Plan("idle-priority", "fluent-bit\x1b[31m (903) to idle priority", (), may_keep=True)
PAIR = Pair("off-on", *(Arm(on, 2.0, {"sync": 6}, 3.0, 2.0, 30.0, steps={"sync": steps}) for on, steps in ((False, 6.0), (True, 12.0))))


LOOKS = round(PATIENCE_S / 0.02)  # of 20 ms and more each


def said(screen: ProveScreen) -> str:
    return "\n".join("".join(text for text, _ in line) for line in screen.lines())


async def opened(pilot: Pilot[None]) -> ProveScreen:
    """The box, when it has found out what to try."""
    await pilot.press("e")
    await pilot.press("p")
    for _ in range(LOOKS):
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
        for _ in range(LOOKS):
            await pilot.pause(0.02)
            if "PROVED" in said(screen):
                break
        assert "2×, 1.9 to 2, faster in 3 of 3 pairs" in said(screen)


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


# the picture

CASE = Case("cpu-contention", TargetProcess(3821, 1, "train.py"), (), (), ())
CULPRIT = TargetProcess(903, 1, "fluent-bit")
KEEPABLE = Plan("idle-priority", "fluent-bit (903) to idle priority", (Change("policy", "5 0", CULPRIT),), True,
                reached=(Reached(CULPRIT, "ada", "idle priority", False, False),))  # fmt: skip


def arm(on: int, per_min: float | None, work: float | None = None) -> Arm:
    steps = {} if per_min is None else {"sync": per_min / 20}
    return Arm(bool(on), 3.0, {"sync": 9}, 3.0, 3.0, work, steps=steps)


def outcome(rates: list[tuple[float | None, float | None]], result: str = "proved", reason: str = "", clock: str = "sync") -> Outcome:
    arms = [[arm(on, *((rate, None) if clock else (None, rate))) for on, rate in enumerate(pair)] for pair in rates]
    pairs = [Pair("off-on", off, on) for off, on in arms]
    metric = "steps" if clock else "gpu_work"
    logs = [change for pair in pairs if (change := pair.ratio_log(metric, clock)) is not None]
    found = estimate(logs, (3, 4, 6, 8)) if len(logs) > 1 else None
    return Outcome(result, reason, pairs, metric, clock, found, 18.0)


def rows(shown: Outcome, width: int = 76, on: bool | None = None) -> list[str]:
    return ["".join(text for text, _ in line) for line in proof.picture(CASE, KEEPABLE, shown, on, width)]


@pytest.mark.parametrize("width", [20, 40, 76, 116])
@pytest.mark.parametrize(
    ("rates", "clock", "told"),
    [
        ([(20.0, 40.0), (18.0, 42.0), (22.0, 41.0)], "sync", ("20 steps/min", "41 steps/min")),
        ([(74.0, 500.0), (70.0, 510.0), (78.0, 490.0)], "sync", ("1.23 steps/s", "8.33 steps/s")),
        ([(12.0, 90.0), (14.0, 92.0), (13.0, 91.0)], "", ("13 % GPU work", "91 % GPU work")),
        ([(0.0, 60.0), (0.0, 60.0), (0.0, 60.0)], "sync", ("0 steps/s", "1 steps/s")),
        ([(None, None)], "", ("not measured", "not measured")),
        ([], "sync", ("not measured", "not measured")),
    ],
)
def test_bars_are_scaled_to_each_other(rates: list[tuple[float, float]], clock: str, told: tuple[str, str], width: int) -> None:
    shown = outcome(rates, clock=clock)
    off, on = ("".join(text for text, _ in line) for line in proof.bars(shown, None, width))
    assert (off.endswith(told[0]), on.endswith(told[1])) == (True, True)
    cells = [line.count("▇") for line in (off, on)]
    if len(off) <= width and any(cells):
        values = [sum(pair[i] for pair in rates) / len(rates) for i in (0, 1)]
        assert cells[1] == max(cells)
        assert abs(cells[0] / cells[1] - values[0] / values[1]) <= 1.0 / cells[1]
        assert len(on) == width
    if width >= 76:
        assert bool(cells[1]) == bool(rates and rates[0][1])


@pytest.mark.parametrize(
    ("shown", "word", "told"),
    [
        (outcome([(20.0, 40.0), (18.0, 42.0), (22.0, 41.0)]), "✓ PROVED", "faster in 3 of 3 pairs"),
        (outcome([(20.0, 20.2), (20.0, 19.9), (20.0, 20.1)], "disproved"), "✗ DISPROVED", "no change"),
        (outcome([(20.0, 10.0), (20.0, 11.0), (20.0, 10.5)], "disproved"), "✗ DISPROVED", "slower"),
        (outcome([(20.0, 30.0), (20.0, 10.0), (20.0, 25.0)], "undecided", "too noisy"), "? UNDECIDED", "too noisy"),
        (outcome([], "undecided", "the trainer has ended"), "? UNDECIDED", "the trainer has ended"),
        (outcome([(0.0, 60.0)] * 3), "✓ PROVED", "from a standstill"),
    ],
)
def test_each_result_has_its_word_and_colour(shown: Outcome, word: str, told: str) -> None:
    for width in (30, 76, 116):
        lines = proof.picture(CASE, KEEPABLE, shown, None, width)
        (colour,) = {colour for line in lines for text, colour in line if text == word}
        assert colour == ("good" if shown.result == "proved" else "warn")
        assert told in "\n".join(rows(shown, width))
        assert "fluent-bit (903, ada)"[: width - 12] in "\n".join(rows(shown, width))


def test_pairs_are_counted_as_they_come() -> None:
    assert proof.title("prove it", outcome([], ""), (3, 4, 6, 8), 2.0, 60).endswith("pair 1 of 3–8, 2 s")
    assert proof.title("prove it", outcome([(1.0, 2.0)] * 2, ""), (3, 4, 6, 8), 14.0, 60).endswith("pair 3 of 3–8, 14 s")
    assert proof.title("prove it", outcome([(1.0, 2.0)] * 3), (3, 4, 6, 8), 99.0, 60).endswith("3 pairs, 18 s")
    under_way = rows(outcome([(20.0, 40.0), (20.0, 30.0)], ""), on=True)
    assert "2×  1.5×" in under_way[4]
    assert under_way[3].startswith("▶ without")
    assert not any("to" in line for line in under_way[6:])  # two pairs bound nothing


CHANGES = [
    Change("policy", "5 0", CULPRIT), Change("nice", "7", CULPRIT), Change("io-priority", "3 0", CULPRIT),
    Change("state", "running", CULPRIT), Change("cpu-mask", "0", CULPRIT), Change("autogroup", "19", CULPRIT),
    Change("file", "100000 100000", path="/sys/fs/cgroup/a b/cpu.max"),
    Change("device", "8:0 rbps=1 wbps=1", path="/sys/fs/cgroup/x/io.max"),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.setting)
def test_the_copied_command_does_what_was_proved(change: Change) -> None:
    command = command_of(Plan("any", "it", (change,), may_keep=True))
    read = commands_of(command)
    assert [(one.setting, one.new, one.path, one.target) for one in read] == [(change.setting, change.new, change.path, change.target)]
    assert command_of(Plan("stop", "it", (change,), may_keep=False)) == ""


def commands_of(command: str) -> list[Change]:
    """The changes that the reader of fixes finds in a command, of a process that need not exist."""
    import shlex
    from types import SimpleNamespace
    from unittest import mock

    from gputop.prove import advised

    scene = SimpleNamespace(
        case=replace(CASE, culprits=(CULPRIT,)), target=lambda _: CULPRIT, groups=SimpleNamespace(cpus=lambda _: {0, 1})
    )
    with mock.patch.object(advised, "read_process", return_value=SimpleNamespace(start_ticks=1, ended=False)):
        return [change for one in advised._simple(command) for change in advised._changes(shlex.split(one), scene)]  # type: ignore[arg-type]


# after the result


async def finished(pilot: Pilot[None], monkeypatch: pytest.MonkeyPatch, shown: Outcome, planned: Plan = KEEPABLE) -> ProveScreen:
    """The box once the experiment has this result."""

    def experiment(*given: Any) -> Iterator[Pair | Outcome]:
        yield from shown.pairs
        yield shown
        given[5].is_put_back = True

    monkeypatch.setattr(running, "planned_for", lambda _case: planned)
    monkeypatch.setattr(running, "experiment", experiment)
    screen = await opened(pilot)
    await pilot.pause()
    await pilot.press("y")
    await waits(pilot, lambda: pilot.app.export_screenshot().count("save&#160;the&#160;evidence") == 2)  # in the box, and in the last line
    return screen


async def waits(pilot: Pilot[None], is_so: Callable[[], bool]) -> None:
    for _ in range(LOOKS):
        await pilot.pause(0.02)
        if is_so():
            return
    raise AssertionError("it did not come")


def last_line(pilot: Pilot[None]) -> str:
    """The last line of the screen, whatever is open over it."""
    return str(pilot.app.screen_stack[0].drawing.keys.widget.line_text(0))  # type: ignore[attr-defined]


PROVED = outcome([(20.0, 40.0), (18.0, 42.0), (22.0, 41.0)])


async def test_keys_after_the_result_are_named_and_clicked(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await finished(pilot, monkeypatch, PROVED)
        for key in ("[k] keep it", "[c] copy the command", "[R] save the evidence"):
            assert key in said(screen)
        assert "k keep it" in last_line(pilot)
        await pilot.click(offset=(last_line(pilot).index("R save") + 3, 23))
        await waits(pilot, lambda: "saved" in screen.first_line)
        (path,) = tmp_path.iterdir()
        saved = msgspec.json.decode(path.read_bytes(), type=running.Proof)
        assert saved.cause == app.context.session.engine.verdict.cause
        assert (saved.result, saved.says, saved.kept) == ("proved", KEEPABLE.says, False)
        assert len(saved.pairs) == 3
        assert json.loads(path.read_bytes())["schema"] == 1
        await pilot.press("R")
        await waits(pilot, lambda: len(list(tmp_path.iterdir())) == 2)
        copied = list[str]()
        monkeypatch.setattr("gputop.tui.clipboard.copy", lambda _, text: copied.append(text) or "copied")
        page = screen.page.text.split("\n")
        row = next(i for i, line in enumerate(page) if "[c] copy" in line)
        region = screen.page.content_region
        await pilot.click(offset=(region.x + page[row].index("[c]") + 1, region.y + row))
        await waits(pilot, lambda: bool(copied))
        assert copied == ["chrt --idle --all-tasks --pid 0 903"]
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, WhyScreen)
        assert "copy the fix" in last_line(pilot)


@pytest.mark.parametrize(
    ("shown", "planned"),
    [
        (outcome([(20.0, 20.2), (20.0, 19.9), (20.0, 20.1)], "disproved"), KEEPABLE),
        (PROVED, replace(KEEPABLE, intervention="stop", may_keep=False)),
    ],
)
async def test_only_what_is_proved_and_may_stay_is_kept(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, shown: Outcome, planned: Plan
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await finished(pilot, monkeypatch, shown, planned)
        assert "[k]" not in said(screen)
        await pilot.press("k")
        await pilot.pause()
        assert "kept" in screen.first_line or "for experiments alone" in screen.first_line
        assert app.context.fixing is not None
        assert app.context.fixing.applied is None
