"""The dashboard through Textual's Pilot: what it shows, and what keys and clicks do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from textual.events import MouseScrollUp
from textual.geometry import Region
from textual.widgets import Input, OptionList

from gputop.model.board import GpuBoard
from gputop.model.frame import Frame, Gpu, GpuProc, ProcInfo
from gputop.stream.session import Session
from gputop.system.privilege import INITIAL_PID_NAMESPACE
from gputop.system.text import cell_width
from gputop.tui import bindings
from gputop.tui.app import GputopApp
from gputop.tui.bindings import HelpScreen
from gputop.tui.dashboard import SORT_KEYS, DashboardScreen
from gputop.tui.details import DetailsScreen
from gputop.tui.draw import Line, folded, gpus
from gputop.tui.draw.table import STARVING_GLYPH, rows
from gputop.tui.draw.view import View
from gputop.tui.enlarge import EnlargeScreen
from gputop.tui.stacks_box import StacksScreen
from gputop.tui.why_box import WhyScreen
from gputop.tui.widgets import Drawn, Scrolled
from tests.tui import scene
from tests.tui.conftest import MakeApp


def part(app: GputopApp, name: str) -> list[str]:
    """The lines of a panel as text."""
    drawn = app.screen_stack[0].query_one(f"#{name}", Drawn)
    return [drawn.line_text(y) for y in range(drawn.size.height)]


def main(app: GputopApp) -> DashboardScreen:
    """The dashboard."""
    screen = app.screen_stack[0]
    assert isinstance(screen, DashboardScreen)
    return screen


def column(lines: list[str], text: str) -> int:
    return next(line.index(text) for line in lines if text in line)


@pytest.mark.parametrize("size", [(80, 24), (160, 48), (300, 80)])
async def test_shows_verdict_gpus_lanes_and_processes(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert "node7" in part(app, "header")[0]
        assert "INPUT-BOUND" in part(app, "verdict")[0]
        assert "97%" in "".join(part(app, "gpus")) or "15%" in "".join(part(app, "gpus")) or "96%" in "".join(part(app, "gpus"))
        assert any("GPU 0 util" in line for line in part(app, "lanes"))
        table = part(app, "procs")
        assert sum("worker" in line for line in table) == 4
        assert len([line for line in table if line.strip()]) >= 7


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_a_state_of_which_the_waits_cannot_be_read_is_marked_as_inferred(make_app: MakeApp, size: tuple[int, int]) -> None:
    """This is how another user's processes look without rights."""
    session = Session()
    for item in scene.frames(100):
        if isinstance(item, Frame):
            item.procs = [structs.replace(sample, syscall=None, syscall_arg=None, wchan=None) for sample in item.procs]
        session.ingest(item)
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        (trainer,) = (line for line in part(app, "procs") if "train.py" in line)
        assert re.search(r" waiting-gpu~ +\d", trainer)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert "inferred: what it waits for cannot be read" in app.screen.query_one(Scrolled).text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 300])
def test_columns_of_a_gpu_are_whole_or_left_out(width: int) -> None:
    session = scene.session()
    session.board.gpus[1].values["throttle_mask"] = 0xE4
    heading, first, second = ("".join(text for text, _ in line) for line in gpus.lines(session.board, session.board, View(width=width), 3))
    assert {len(heading), len(first), len(second)} == {width}
    assert "…" not in heading + first
    assert ("/700 W" in first) == ("power" in heading)
    assert width < 160 or "…" not in second


def test_a_gpu_that_does_not_answer_says_so() -> None:
    session = scene.session()
    hung = session.board.gpus[1]
    hung.values.pop("util_pct", None)
    hung.missing["util_pct"] = "the driver has not answered for 2.0 s"
    rows = ["".join(text for text, _ in line) for line in gpus.lines(session.board, session.board, View(width=160), 3)]
    assert ["no answer" in row for row in rows] == [False, False, True]


def test_who_is_on_a_gpu_and_in_no_list_of_processes_is_gone_elsewhere_or_hidden() -> None:
    session = scene.session()
    session.board.gpus[0].values["procs"] = [*session.board.gpus[0].procs, GpuProc(77)]
    found = {row.pid: row.who for row in rows(session, View())}
    assert found[77] == "in another pid namespace"
    session.following.header = structs.replace(scene.HEADER, pid_namespace=INITIAL_PID_NAMESPACE)
    assert {row.pid: row.who for row in rows(session, View())}[77] == "hidden by hidepid"
    session.board.infos[2] = ProcInfo(2, 1, 0, comm="kthreadd")
    assert {row.pid: row.who for row in rows(session, View())}[77] == "gone"


async def test_lanes_of_charts_and_processes_end_in_the_same_column(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        charts = [line for line in part(app, "lanes") if "GPU 1 util" in line]
        workers = [line for line in part(app, "procs") if "worker 0" in line]
        assert charts
        assert {len(line) for line in charts + workers} == {app.context.view.width}
        assert charts[0][-1] != " "
        assert workers[0][-1] != " "


async def test_starving_workers_are_said_to_starve_by_word_and_glyph(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        workers = [line for line in part(app, "procs") if "worker" in line]
        assert len(workers) == 4
        assert all("● STARVING" in line and line.endswith(STARVING_GLYPH) for line in workers)


async def test_workers_that_are_ahead_never_starve(make_app: MakeApp) -> None:
    app = make_app(scene.session(starving=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        text = "".join(part(app, "procs"))
        assert "worker" in text
        assert "STARVING" not in text


async def test_names_of_processes_cannot_reach_the_terminal(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        text = "\n".join(part(app, "procs"))
        assert "[red]" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


async def test_a_lane_and_the_row_of_its_gpu_say_the_same_number(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        screen, t_ns = main(app), app.context.session.now_ns + scene.TICK_NS
        for every_s, told in ((1e9, False), (0.0, True)):
            monkeypatch.setattr("gputop.tui.drawing.NUMBERS_EVERY_S", every_s)
            t_ns += scene.TICK_NS
            app.context.session.ingest(Frame(100, t_ns, gpus=[Gpu(0, t_ns, util_pct=42.0, util_t_ns=t_ns)]))
            screen.draw_news()
            row, lane = part(app, "gpus")[1], next(line for line in part(app, "lanes") if "GPU 0 util" in line)
            assert ("42%" in row, "42 %" in lane) == (told, told)


async def test_pausing_holds_the_picture_and_the_cursor_goes_back_with_the_table(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("space")
        assert "PAUSED" in part(app, "header")[0]
        assert app.context.view.end_ns == app.context.session.now_ns
        await pilot.press("left", "left")
        cell = 2 * 500_000_000
        assert app.context.view.cursor_ns == app.context.session.now_ns - cell
        assert any("worker 0" in line for line in part(app, "procs"))
        await pilot.press("end")
        assert app.context.view.end_ns is None
        assert "LIVE" in part(app, "header")[0]


async def test_the_demos_guide_goes_on_while_the_picture_is_paused(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputop.tui.drawing.NUMBERS_EVERY_S", 0.0)
    app, said = make_app(), ["press ←"]

    class Guide:
        def line(self, *_: object) -> Line:
            return [(said[-1], "title")]

        def did(self, _action: str) -> None:
            pass

    app.context.look.guide = Guide()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("space")
        for words in ("on your node", "as root", "q quits"):
            said.append(words)
            app.on_news()
            await pilot.pause()
            assert words in part(app, "guide")[0]


async def test_the_time_base_zooms_from_10_s_to_10_min(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        for _ in range(8):
            await pilot.press("plus")
        assert app.context.view.window_s == 10
        for _ in range(12):
            await pilot.press("minus")
        assert app.context.view.window_s == 600


async def test_the_filters_line_has_a_label_and_counts_what_it_finds(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash")
        await pilot.pause()
        whole = len(app.screen.drawing.table.shown)  # type: ignore[attr-defined]

        def line() -> str:
            return "".join(segment.text for segment in app.screen.get_widget_by_id("filter").render_lines(Region(0, 0, 80, 1))[0])

        assert re.fullmatch(rf" filter: w.* {whole} of {whole} ", line()), "with a word on what may be typed"
        await pilot.press(*"worker")
        await pilot.pause()
        assert re.fullmatch(rf" filter: worker +4 of {whole} ", line())
        await pilot.press(*"x" * 90)
        await pilot.pause()
        assert re.fullmatch(rf" filter: x+ +0 of {whole} ", line()), "the end of what is typed is seen, beside both"
        assert len(line()) == 80


async def test_filter_keeps_what_matches_and_escape_brings_everything_back(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("slash", *"worker", "space", "2", "enter")
        await pilot.pause()
        assert app.context.view.pattern == "worker 2"
        heading, *table = part(app, "procs")
        assert "only /worker 2" in heading
        assert sum("worker" in line for line in table) == 1
        assert app.screen.query_one("#filter", Input).disabled
        await pilot.press("escape")
        assert app.context.view.pattern == ""
        assert sum("worker" in line for line in part(app, "procs")) == 4


@pytest.mark.parametrize(
    ("pattern", "pids"),
    [
        ("!^38", {scene.TRAINER, *scene.WORKERS}),
        (f"!^{scene.HOG}$", {scene.HOG}),
        ("!epochs 3$", {scene.TRAINER, *scene.WORKERS}),
        ("!^starving$", set(scene.WORKERS)),
        ("!^python$", set()),
    ],
)
def test_the_ends_of_an_expression_are_those_of_name_state_and_the_like(pattern: str, pids: set[int]) -> None:
    assert {row.pid for row in rows(scene.session(), View(pattern=pattern))} == pids


async def test_what_is_no_expression_is_said(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("slash", "!", "(", "enter")
        await pilot.pause()
        assert "no usable regular expression" in part(app, "keys")[0]
        assert sum("worker" in line for line in part(app, "procs")) == 4


@pytest.mark.parametrize(("key", "row"), [("home", 0), ("down", 0), ("up", -1)])
async def test_where_nothing_is_selected_a_key_begins_at_its_end_of_the_table(make_app: MakeApp, key: str, row: int) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press(key)
        assert isinstance(app.screen, DashboardScreen)
        assert app.context.view.selected == app.screen.drawing.table.shown[row].pid


async def test_sorting_by_letter_as_in_nvitop(make_app: MakeApp) -> None:
    app = make_app(tree=False)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("o", "c")
        assert (app.context.view.sort, app.context.view.reverse) == ("cpu", False)
        assert str(scene.HOG) in part(app, "procs")[1]
        await pilot.press("o", "P")
        assert (app.context.view.sort, app.context.view.reverse) == ("pid", True)
        assert str(scene.WORKERS[-1]) in part(app, "procs")[1]


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_the_last_line_names_help_and_every_letter_to_sort_by(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert "? help" in part(app, "keys")[0]
        await pilot.press("o")
        assert all(f"[{letter}]" in part(app, "keys")[0] for letter in SORT_KEYS)


async def test_what_is_said_first_stands_in_the_line_of_keys(make_app: MakeApp) -> None:
    app = make_app()
    app.context.look.note = "an experiment has left something changed"
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.pause()
        assert "left something changed" in part(app, "keys")[0]


@pytest.mark.parametrize("key", ["o", "K", "t"])
async def test_the_next_key_takes_a_note_away(make_app: MakeApp, key: str) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert "q quit" not in part(app, "keys")[0]
        await pilot.press("escape")
        assert "q quit" in part(app, "keys")[0]


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_hidden_bystanders_are_said_to_be_hidden(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    app = make_app(scene.session(starving=False))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert any(str(scene.HOG) in line for line in part(app, "procs"))
        assert "hidden" not in "".join(part(app, "procs"))
        await pilot.press("b")
        assert not any(str(scene.HOG) in line for line in part(app, "procs"))
        assert "hidden (b)" in part(app, "procs")[0]
        monkeypatch.setattr("gputop.tui.panels.rows", lambda *_: [])
        main(app).drawing.redraw()
        assert "bystanders hidden (b)" in part(app, "procs")[1]
        assert "no busy process" not in part(app, "procs")[1]


async def test_the_one_process_asked_for_is_said_to_have_ended(make_app: MakeApp) -> None:
    session = scene.session()
    app = make_app(session, pid=scene.HOG)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert str(scene.HOG) in part(app, "procs")[1]
        session.ingest(Frame(100, session.now_ns + scene.TICK_NS, gone=[scene.HOG]))
        main(app).drawing.redraw()
        assert f"no process {scene.HOG}: it has ended" in part(app, "procs")[1]
        await pilot.press("left")
        assert "ended" not in part(app, "procs")[1]


@pytest.mark.parametrize(
    ("keys", "screen"),
    [("e", WhyScreen), ("z", EnlargeScreen), ("question_mark", HelpScreen), ("down enter", DetailsScreen)],
)
@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_boxes_open_and_close(make_app: MakeApp, keys: str, screen: type, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await pilot.press(*keys.split())
        await pilot.pause()
        assert isinstance(app.screen, screen)
        text = app.screen.query_one(Scrolled).text
        assert len(text.strip()) > 60
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)
        await pilot.press(*keys.split())
        assert isinstance(app.screen, screen)
        await pilot.press(keys.split()[-1])
        assert isinstance(app.screen, DashboardScreen)


@pytest.mark.parametrize("keys", ["z", "question_mark", "s"])
async def test_a_box_is_made_anew_for_another_size_of_the_terminal(make_app: MakeApp, keys: str) -> None:
    app = make_app()
    app.context.look.remote = True
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press(keys)
        for size in ((60, 24), (160, 48)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            page = app.screen.query_one(Scrolled)
            assert page.size.width <= size[0]
            assert max(cell_width(line) for line in page.text.split("\n")) <= page.size.width
        assert page.size.width > 70


def test_a_line_that_is_too_long_for_a_box_is_folded_in_its_colours() -> None:
    rows = folded([("  PATH  ", "dim"), ("/opt/conda/bin /usr/bin", "accent")], 20)
    assert {meaning for row in rows for text, meaning in row if text.strip()} == {"dim", "accent"}
    assert "".join("".join(text for text, _ in row).strip() for row in rows) == "PATH/opt/conda/bin/usr/bin"
    assert all(sum(len(text) for text, _ in row) <= 20 for row in rows)
    broken = ["".join(text for text, _ in row) for row in folded([("worker of train", "")], 9)]
    assert broken == ["worker of", "    train"]
    assert all(sum(cell_width(text) for text, _ in row) <= 10 for row in folded([("日本 日本語日本語", "")], 10))


async def test_a_box_scrolls_below_its_title_and_stops_at_its_end(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        page = app.screen.query_one(Scrolled)
        title, *lines = page.text.split("\n")
        await pilot.press("down", "down")
        assert [page.render_line(y).text.rstrip() for y in (0, 1)] == [title, lines[2].rstrip()]
        await pilot.press(*["pagedown"] * 9)
        assert page.render_line(page.size.height - 1).text.rstrip() == lines[-1].rstrip()
        await pilot._post_mouse_events([MouseScrollUp], widget=page)
        await pilot.pause()
        assert page.render_line(page.size.height - 1).text.rstrip() != lines[-1].rstrip()


async def test_the_main_thread_has_its_processs_name(make_app: MakeApp) -> None:
    """Sources name the other threads."""
    session = scene.session()
    session.board.infos[scene.TRAINER] = structs.replace(session.board.infos[scene.TRAINER], comm="train", threads=[])
    app = make_app(session)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("home", "enter")
        await pilot.pause()
        rows = [row.split() for row in app.screen.query_one(Scrolled).text.split("\n")]
        assert [row[:2] for row in rows if row[:1] == [str(scene.TRAINER)]] == [[str(scene.TRAINER), "train"]]


async def test_help_names_every_key_of_the_dashboard(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        text = app.screen.query_one(Scrolled).text
        missing = [binding.description for binding in bindings.LIVE if binding.description not in text]
        assert not missing


async def test_a_click_chooses_a_process_and_a_moment(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        await pilot.click("#procs", offset=(5, 1 + [str(scene.WORKERS[0]) in line for line in part(app, "procs")[1:]].index(True)))
        assert app.context.view.selected == scene.WORKERS[0]
        await pilot.click("#lanes", offset=(150, 2))
        assert app.context.view.cursor_ns is not None
        assert app.context.view.cursor_ns < app.context.session.now_ns


@pytest.mark.parametrize("pid", [812, 4194303])
async def test_a_tag_takes_nothing_of_a_pid(make_app: MakeApp, pid: int) -> None:
    session = scene.session()
    session.board.gpus[0].procs.append(GpuProc(pid))
    app = make_app(session)
    async with app.run_test(size=(160, 48)) as pilot:
        app.context.view.tagged.add(pid)
        main(app).drawing.redraw()
        await pilot.pause()
        heading, *rows = part(app, "procs")
        row = next(row for row in rows if str(pid) in row)
        assert row[:8].strip() == f"*{pid}"
        assert row.index("in another") == heading.index("WHO")


async def test_a_click_on_a_title_sorts_by_it_and_another_the_other_way_round(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        heading, inset = part(app, "procs")[0], app.context.view.inset
        for reverse in (False, True, False):
            await pilot.click("#procs", offset=(inset + heading.index("CPU%") + 1, 0))
            assert (app.context.view.sort, app.context.view.reverse) == ("cpu", reverse)
        await pilot.click("#procs", offset=(inset + heading.index("RSS"), 0))
        assert (app.context.view.sort, app.context.view.reverse) == ("mem", False)
        for title in ("STATE", "over time"):  # they stand for no order
            await pilot.click("#procs", offset=(inset + heading.index(title), 0))
            assert app.context.view.sort == "mem"
        await pilot.click("#procs", offset=(inset + heading.index("PID") - 4, 0))
        assert app.context.view.sort == "pid"


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_a_click_on_a_key_that_is_named_presses_it(make_app: MakeApp, ascii_only: bool) -> None:
    app = make_app(ascii_only=ascii_only)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()

        async def click(name: str, y: int, word: str) -> None:
            await pilot.click(f"#{name}", offset=(app.context.view.inset + part(app, name)[y].index(word), y))
            await pilot.pause()

        await click("verdict", 1, "why")
        assert isinstance(app.screen, WhyScreen)
        await pilot.press("escape")
        await click("verdict", 1, "[s]")
        assert isinstance(app.screen, StacksScreen)
        await pilot.press("escape")
        await click("keys", 0, "time")
        assert app.context.view.cursor_ns is not None
        await click("keys", 0, "help")
        assert isinstance(app.screen, HelpScreen)


async def test_a_click_where_no_key_is_named_presses_none(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(45, 20)) as pilot:
        await pilot.pause()
        for x in range(len(part(app, "keys")[0].rstrip()), 45):
            await pilot.click("#keys", offset=(x, 0))
        main(app).drawing.show_note("what was done")
        await pilot.click("#keys", offset=(2, 0))
        await pilot.pause()
        assert app.is_running
        assert type(app.screen) is DashboardScreen
        assert app.context.view.end_ns is None


async def test_without_a_gpu_the_host_part_runs_and_says_why(make_app: MakeApp) -> None:
    app = make_app(scene.session(gpus=0))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert "none" in part(app, "gpus")[0]
        assert any("worker" in line for line in part(app, "procs"))


@pytest.mark.parametrize("size", [(20, 5), (40, 8), (80, 24), (300, 80)])
async def test_any_size_while_running(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert part(app, "header")[0].startswith("gputop"[: size[0]])
        await pilot.resize_terminal(160, 48)
        await pilot.pause()
        assert sum("worker" in line for line in part(app, "procs")) == 4


async def test_ascii_only(make_app: MakeApp) -> None:
    app = make_app(ascii_only=True)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        text = "".join("".join(part(app, name)) for name in ("header", "verdict", "gpus", "lanes", "procs", "keys"))
        assert text.isascii()
        assert "STARVING" in text


class Watched(dict[int, GpuBoard]):
    """GPUs that fail the test where they are iterated without the session's lock: the reader thread adds to them."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.board.gpus)
        self._lock = session.lock

    def __iter__(self) -> Iterator[int]:
        assert self._lock.locked()
        return super().__iter__()


async def test_keys_and_clicks_look_only_under_the_lock(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    lock = app.context.session.lock
    for name in ("axis", "go_to", "scrub", "toggle_pause", "next_incident"):
        real = getattr(View, name)
        monkeypatch.setattr(View, name, lambda *args, real=real: real(*args) if lock.locked() else pytest.fail("unlocked"))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        app.context.session.board.gpus = Watched(app.context.session)
        await pilot.press("g", "left", "n", "space", "space", "down", "s", "escape", "e", "escape", "plus")
        await pilot.click("#lanes", offset=(60, 3))
        assert app.context.view.cursor_ns is not None


async def test_a_page_of_a_palette_that_is_not_laid_out_yet_is_nothing(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        opened = app.screen
        opened.query_one(OptionList).add_option("one")
        opened.query_one(OptionList)._index_to_line.clear()
        await app.run_action("command_list('page_down')", opened)
        assert app.screen is opened


async def test_a_picture_of_the_screen_lies_where_gputop_was_started(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        app.deliver_screenshot("screen.svg")
        for _ in range(100):
            if (tmp_path / "screen.svg").exists() and (tmp_path / "screen.svg").stat().st_size:
                break
            await asyncio.sleep(0.02)
    assert (tmp_path / "screen.svg").read_text().startswith("<svg")
