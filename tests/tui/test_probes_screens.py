"""What the probes add to the screen: who took CPU from whom, distributions of single waits."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from gputop.model.frame import Frame, Preempt, Probes, SchedThread, SourceState, Wakeup
from gputop.model.histogram import bucket_of
from gputop.stream.observers import histogram
from gputop.stream.session import Session
from gputop.tui.draw import time_of_day
from gputop.tui.draw.view import WINDOWS_S
from gputop.tui.enlarge import EnlargeScreen, value_bars, wait_bars
from gputop.tui.why_box import ContentionScreen, preemption_pairs, wakeup_pairs
from gputop.tui.widgets import Scrolled
from tests.tui import scene
from tests.tui.conftest import MakeApp

VICTIM = scene.WORKERS[0]
MS = 1_000_000


def probed(ticks: int = 60) -> Session:
    """The scene, with the hog taking 60 ms of every 100 from the first worker, which wakes the trainer ten times a second."""
    session = Session()
    for item in scene.frames(ticks):
        if isinstance(item, Frame):
            n = item.seq
            item.probes = Probes(
                item.t_ns,
                threads=[SchedThread(VICTIM, VICTIM, n * 30 * MS, n * 60 * MS, n * 60 * MS, 0, 0, n, n, 60 * MS, {bucket_of(60 * MS): n})],
                preempts=[Preempt(VICTIM, scene.HOG, scene.HOG, n * 60 * MS, n)],
                wakeups=[Wakeup(scene.TRAINER, VICTIM, VICTIM, n, n * 80 * MS)],
            )
        session.ingest(item)
    return session


def test_pairs_are_what_happened_between_two_boards() -> None:
    session = probed()
    older, newer = session.board_at(session.now_ns - 2_000_000_000), session.board
    (taken,) = preemption_pairs(older, newer)
    assert (taken.one, taken.other, taken.ns, taken.times) == (VICTIM, scene.HOG, 20 * 60 * MS, 20)
    (woken,) = wakeup_pairs(older, newer, frozenset({scene.TRAINER}))
    assert (woken.one, woken.other, woken.times) == (scene.TRAINER, VICTIM, 20)
    assert wakeup_pairs(older, newer, frozenset()) == []


def test_distribution_counts_every_wait_of_the_time_shown() -> None:
    session = probed()
    older, newer = session.board_at(session.now_ns - 2_000_000_000), session.board
    waits = histogram("runq.p99_ms", older, newer, frozenset({VICTIM}))
    assert waits == {bucket_of(60 * MS): 20}
    assert sum(count for _, count in wait_bars(waits)) == 20
    assert histogram("runq.p99_ms", older, newer, frozenset()) == {}
    assert histogram("gpu.util_pct", older, newer, frozenset({VICTIM})) == {}


def test_value_bars_hold_every_reading() -> None:
    assert sum(count for _, count in value_bars([1.0, 2.0, 2.0, 9.0])) == 4
    assert sum(count for _, count in value_bars([5.0, 5.0])) == 2


async def test_a_wait_that_began_before_the_window_is_no_longer_than_that(make_app: MakeApp) -> None:
    """A wait is booked when it ends: here 80 s at once, in the last second."""
    session = probed()
    board = session.board
    ((pair, woken),) = board.wakeups.items()
    board.wakeups[pair] = Wakeup(woken.wakee_tid, woken.waker_tid, woken.waker_pid, woken.times + 1, woken.wait_ns + 80_000 * MS)
    app = make_app(session)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("w")
        await pilot.pause()
        row = next(line for line in app.screen.query_one(Scrolled).text.splitlines() if f"{scene.TRAINER} " in line)
        assert row.split()[-3] == "100"


async def test_the_table_names_victim_and_culprit(make_app: MakeApp) -> None:
    app = make_app(probed())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("w")
        await pilot.pause()
        text = app.screen.query_one(Scrolled).text
        assert f"{VICTIM} worker 0" in text
        assert str(scene.HOG) in text
        assert "0.60" in text


async def test_the_table_fits_80_columns(make_app: MakeApp) -> None:
    app = make_app(probed())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w")
        await pilot.pause()
        assert isinstance(app.screen, ContentionScreen)
        rows = app.screen.query_one(Scrolled).text.split("\n")[1:]
        assert max(map(len, rows)) <= app.screen.text_width
        head, pair = rows[:2]
        assert len(pair) == len(head)
        assert pair.endswith(f"{pair.split()[-2]:>9}{pair.split()[-1]:>8}")


async def test_without_probes_the_table_says_what_they_need(make_app: MakeApp) -> None:
    app = make_app()
    app.context.session.board.sources["ebpf"] = SourceState("ebpf", "unavailable", "needs CAP_BPF " * 5, "sudo setcap " * 9 + "END")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w")
        await pilot.pause()
        rows = app.screen.query_one(Scrolled).text.split("\n")[1:]
        assert "needs CAP_BPF" in rows[0]
        assert rows[-1].endswith("END)")
        assert isinstance(app.screen, ContentionScreen)
        assert max(map(len, rows)) <= app.screen.text_width


async def test_the_foot_of_an_enlarged_lane_is_whole_in_80_columns(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("z")
        await pilot.pause()
        assert isinstance(app.screen, EnlargeScreen)
        rows = app.screen.query_one(Scrolled).text.split("\n")[1:]
        assert rows[-1].startswith("source: ")
        assert max(map(len, rows)) <= app.screen.text_width
        assert len(rows) <= app.screen.text_height


async def test_a_lane_can_be_seen_as_a_distribution(make_app: MakeApp) -> None:
    app = make_app(probed())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("z", "d")
        await pilot.pause()
        assert "readings in this time" in app.screen.query_one(Scrolled).text


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
@pytest.mark.parametrize("paused", [False, True], ids=["live", "paused"])
async def test_the_times_under_an_enlarged_lane_are_round(
    make_app: MakeApp, size: tuple[int, int], paused: bool
) -> None:  # fmt: skip
    app = make_app(scene.session(9, starving=False))  # the sign of an incident takes the place of a time
    async with app.run_test(size=size) as pilot:
        await pilot.press(*["space"] * paused)
        for window_s in WINDOWS_S:
            app.context.view.window_s = window_s
            await pilot.press("z")
            await pilot.pause()
            ruler = re.sub("[─━▼◆]+", " ", app.screen.query_one(Scrolled).text.split("\n")[1])
            await pilot.press("escape")
            assert _lengths(ruler, app.context.session.unix_s(app.context.view.end(app.context.session))) in (
                [i * step for i in range(most, -1, -1)] for step in (1, 2, 5, 10, 20, 30, 60, 120, 300) for most in range(1, 7)
            )


async def test_an_enlarged_lane_has_its_colour_its_thresholds_its_incidents_and_a_cursor_with_values(make_app: MakeApp) -> None:
    app = make_app(scene.session(150))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.press("z")
        while not (page := app.screen.query_one(Scrolled)).line_text(0).startswith("run-queue"):
            await pilot.press("down")
        head, *_ = rows = page._shown[1:]
        assert "━" in "".join(text for text, _ in head), "the incident on the ruler"
        looks = {style for row in rows for text, style in row if text.strip("╌ ") and style.endswith("@")}
        assert looks == {"crit@"}
        sides = [row[0] for row in rows if row[0][1] in ("warn", "crit")]
        assert [(text.strip(), style) for text, style in sides] == [("30", "crit"), ("10", "warn")]
        assert not any(style == "cursor" for row in rows for _, style in row)
        values = page.text.split("\n")[-3]
        assert values.startswith("now  ")
        await pilot.press(*["left"] * 4)
        at = [(row, text) for row in page._shown for text, style in row if style == "cursor"]
        assert len(at) > 10, "a whole column"
        told = page.text.split("\n")[-3]
        seen, axis = app.context.session, app.screen._axis  # type: ignore[attr-defined]
        at_ns = app.screen.cursor_ns  # type: ignore[attr-defined]
        assert at_ns == seen.now_ns - 4 * axis.cell_ns
        here = seen.history.cell(("runq.pct", 0), at_ns // axis.cell_ns * axis.cell_ns, (at_ns // axis.cell_ns + 1) * axis.cell_ns)
        assert told.startswith(f"−{4 * axis.cell_ns / 1e9:.1f} s  {here:.0f} %  in cpu-contention")
        assert "GPU 0 util" in told
        await pilot.press("home", "down")
        assert f"−{4 * axis.cell_ns / 1e9:.1f} s" in page.text.split("\n")[-3], "the moment stays with another lane"
        await pilot.press("end")
        assert not any(style == "cursor" for row in page._shown for _, style in row)


def _lengths(ruler: str, end_unix_s: float) -> list[int]:
    """The times on a ruler, in seconds before its right end."""
    if found := re.findall(r"(\d\d):(\d\d):(\d\d)", ruler):
        assert ruler.split() == [":".join(time) for time in found]
        ends = time_of_day(end_unix_s).split(":")
        return [(_seconds(ends) - _seconds(time)) % 86400 for time in found]
    assert ruler.split()[-1] == "now"
    return [int(number) * (60 if unit == "min" else 1) for number, unit in re.findall(r"−(\d+) (s|min)\b", ruler)] + [0]


def _seconds(time: Sequence[str]) -> int:
    hours, minutes, seconds = map(int, time)
    return hours * 3600 + minutes * 60 + seconds


async def test_estimates_are_told_as_such(make_app: MakeApp) -> None:
    session = probed()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w")
        await pilot.pause()
        assert "estimates" not in app.screen.query_one(Scrolled).text
        session.board.switch_share = 0.09
        await pilot.press("w", "w")
        await pilot.pause()
        assert isinstance(app.screen, ContentionScreen)
        rows = app.screen.query_one(Scrolled).text.split("\n")[1:]
        assert rows[0] == "estimates: context switches are so many that they are counted in 9 % of the time"[: app.screen.text_width]
        assert max(map(len, rows)) <= app.screen.text_width
