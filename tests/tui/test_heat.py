"""The heat map of many GPUs: a row each, the odd one with its cause, cells that need no colour, and one GPU as a chart."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from gputop.model.frame import Frame, Gpu, MigInstance
from gputop.stream.session import Session
from gputop.tui.app import GputopApp
from gputop.tui.colours import HEAT_LEVELS, palette
from gputop.tui.details import DetailsScreen
from gputop.tui.draw import heat
from gputop.tui.draw.lanes import BARS
from gputop.tui.draw.view import View
from gputop.tui.enlarge import EnlargeScreen
from gputop.tui.panels import arrange
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import main, part

SIZES = [(80, 24), (120, 35), (160, 48), (220, 60)]
LATE = 3


def rows_of(app: GputopApp) -> dict[str, str]:
    """First word -> row of the map."""
    return {row.split()[0]: row for row in part(app, "gpus")[1:] if row.strip()}


def cells_of(app: GputopApp, row: str) -> str:
    """The row's cells, which end at the right edge."""
    found = main(app).drawing.gpus.heat
    assert found is not None
    return row[-found.cells :]


def told(gpus: int, change: dict[int, Gpu], ticks: int = 60) -> Session:
    """A session of ranks whose last ``ticks`` of 100 have these readings (GPU -> what differs) in place of their own."""
    seen = Session()
    for item in scene.of_ranks(gpus):
        if isinstance(item, Frame) and item.seq >= 100 - ticks:
            item.gpus = [replace(change[gpu.index], t_ns=gpu.t_ns) if gpu.index in change else gpu for gpu in item.gpus]
        seen.ingest(item)
    return seen


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("gpus", [4, 8, 16, 32])
async def test_each_gpu_has_a_row_on_the_axis_of_the_lanes_and_none_a_lane_but_the_chosen(
    make_app: MakeApp, size: tuple[int, int], gpus: int
) -> None:  # fmt: skip
    app = make_app(scene.ranks(gpus, LATE))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        rows = rows_of(app)
        own = [name for name in rows if not name.startswith("+")]
        rest = [int(name[1:]) for name in rows if name.startswith("+")]
        assert len(own) + sum(rest) == gpus
        assert f"{len(own)} of {gpus} GPUs" in part(app, "gpus")[0] if rest else not rest
        assert "▲ holds" in rows[str(LATE)]
        assert "█" not in "".join(cells_of(app, row) for row in rows.values()), "no row touches the one above it"
        lanes = "".join(part(app, "lanes"))
        assert {found[1] for found in re.finditer(r"GPU (\d+)", lanes)} <= {str(LATE)}, "the one that something is wrong with"
        # The late rank's GPU fell 6 s ago; its lane and its row do so in the same column.
        lane = next(row for row in part(app, "lanes") if f"GPU {LATE} util" in row)
        cells = cells_of(app, rows_of(app)[str(LATE)])
        falls = cells.rindex(BARS[7]) + 1 - len(cells)
        assert lane[falls - 1] != lane[falls]


@pytest.mark.parametrize(("gpus", "late"), [(8, 3), (16, 9)])
async def test_the_rank_that_holds_the_others_is_marked_and_who_waits_names_it(make_app: MakeApp, gpus: int, late: int) -> None:
    app = make_app(scene.ranks(gpus, late))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        rows = rows_of(app)
        assert f"▲ holds {gpus - 1}" in rows[str(late)]
        assert all(f"waits for rank {late}" in row for name, row in rows.items() if name != str(late))
        assert [row.split()[1] for row in rows.values()] == [str(rank) for rank in range(gpus)]


async def test_looking_back_shows_what_was_found_then(make_app: MakeApp) -> None:
    session = scene.ranks(8, LATE)
    app = make_app(session)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        app.context.view.go_to(session, scene.START_NS + 35 * scene.TICK_NS)
        main(app).drawing.redraw()
        assert not any("holds" in row or "waits" in row for row in rows_of(app).values())
        app.context.view.go_to(session, scene.START_NS + 95 * scene.TICK_NS)
        main(app).drawing.redraw()
        assert "▲ holds 7" in rows_of(app)[str(LATE)]


@pytest.mark.parametrize("look", [{"theme": "gputop-dark"}, {"ascii_only": True}])
async def test_a_cell_shows_how_busy_without_a_colour(make_app: MakeApp, look: dict[str, object]) -> None:
    app = make_app(scene.ranks(8, LATE), **look)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        full, low, middle = ("%", "-", "+") if look.get("ascii_only") else (BARS[7], BARS[3], BARS[5])
        rows = rows_of(app)
        assert set(cells_of(app, rows["5"]).strip()) == {full, low}
        assert set(cells_of(app, rows[str(LATE)]).strip()) == {full, middle}


async def test_a_lost_gpu_has_dashes_and_its_reason(make_app: MakeApp) -> None:
    why = "GPU lost: it has fallen off the bus or been removed"
    gone = dict.fromkeys(("util_pct", "power_w", "mem_used_bytes", "sm_active_pct", "temp_c", "sm_clock_mhz", "throttle_mask"), why)
    app = make_app(told(8, {5: Gpu(5, 0, lost=True, xid=79, missing=gone)}))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        row = rows_of(app)["5"]
        assert "LOST Xid 79" in row
        assert re.findall(r"[–\d.]+%?", row.partition("LOST")[0])[2:] == ["–"] * 4, "util, power, memory, temperature"
        cells = cells_of(app, row)
        assert cells.strip()[0] == BARS[7]
        assert cells.endswith(heat.UNREAD * 5)


async def test_a_gpu_that_does_not_answer_says_how_long(make_app: MakeApp) -> None:
    hung = dict.fromkeys(("util_pct", "power_w", "mem_used_bytes", "sm_active_pct", "sm_clock_mhz", "throttle_mask"),
                         "the driver has not answered for 12 s")  # fmt: skip
    app = make_app(told(4, {1: Gpu(1, 0, missing=hung)}))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        assert "no answer 12 s" in rows_of(app)["1"]


async def test_a_gpu_that_never_had_a_reading_says_why_in_place_of_cells(make_app: MakeApp) -> None:
    app = make_app(told(4, {2: Gpu(2, 0, missing={"util_pct": "Not Supported"})}, ticks=100))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        rows = rows_of(app)
        assert cells_of(app, rows["2"]).startswith("Not Supported")
        assert cells_of(app, rows["1"]).endswith(BARS[7] * 9)


def split(gpus: int = 4) -> Session:
    """A session whose GPU 1 has two MIG devices: one works all the time, one rests."""
    devices = [MigInstance(i, 7 + i, 0, "", f"1g.{10 + i}gb", 3 * scene.GIB, 10 * scene.GIB, 14, 42.0, util_pct=util)
               for i, util in enumerate((99.0, 4.0))]  # fmt: skip
    gpu = Gpu(1, 0, mig_mode=True, mig=devices, power_w=300.0, missing={"util_pct": "not available while MIG is on",
                                                                       "sm_active_pct": "not available while MIG is on"})  # fmt: skip
    return told(gpus, {1: gpu}, ticks=100)


async def test_a_mig_device_has_a_row_with_its_own_history(make_app: MakeApp) -> None:
    app = make_app(split())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        rows = rows_of(app)
        assert list(rows) == ["0", "1", "1:0", "1:1", "2", "3"]
        assert set(cells_of(app, rows["1:0"]).strip()) == {BARS[7]}
        assert set(cells_of(app, rows["1:1"]).strip()) == {BARS[1]}
        assert cells_of(app, rows["1"]).startswith("split: see its MIG devices")
        await pilot.press("g", "z")
        await pilot.pause()
        assert isinstance(app.screen, EnlargeScreen)
        assert app.screen.first_line.startswith("GPU 1:0 util")


async def test_mig_devices_without_room_are_counted(make_app: MakeApp) -> None:
    app = make_app(split(8))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "2 MIG devices not shown" in part(app, "gpus")[0]


async def test_where_not_all_have_room_the_odd_one_and_the_chosen_have_rows_of_their_own(make_app: MakeApp) -> None:
    app = make_app(scene.ranks(32, late=29))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.press("g", "g")
        rows = rows_of(app)
        assert "▲ holds 31" in rows["29"]
        assert "31" in rows
        (rest,) = (name for name in rows if name.startswith("+"))
        assert int(rest[1:]) == 32 - (len(rows) - 1)
        assert {BARS[7], BARS[3]} <= set(cells_of(app, rows[rest]).strip())
        await pilot.click("#gpus", offset=(2, list(rows).index(rest) + 1))
        assert str(app.context.view.gpu) not in rows, "a click on the others chooses the first of them"
        assert str(app.context.view.gpu) in rows_of(app)


@pytest.mark.parametrize("way", ["z", "enter", "click"])
async def test_one_gpu_is_a_chart(make_app: MakeApp, way: str) -> None:
    app = make_app(scene.ranks(8, LATE))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        if way == "click":
            await pilot.click("#gpus", offset=(2, 6), times=2)
        else:
            await pilot.press(*"gg", way)
        await pilot.pause()
        assert isinstance(app.screen, EnlargeScreen)
        assert app.screen.first_line.startswith("GPU 5 util")


async def test_the_map_goes_to_the_gpu_with_trouble_until_one_is_chosen_and_again_after_escape(make_app: MakeApp) -> None:
    app = make_app(scene.ranks(8, LATE))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        assert app.context.view.gpu == LATE
        await pilot.press("g")
        main(app).drawing.redraw()
        assert app.context.view.gpu == LATE + 1
        await pilot.press("escape")
        assert app.context.view.gpu == LATE


async def test_rows_are_shaded_while_their_gpus_lose_time(make_app: MakeApp) -> None:
    seen = scene.ranks(8, LATE)
    app = make_app(seen)
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        found = main(app).drawing.gpus.heat
        assert found is not None
        axis = app.context.view.axis(seen).narrowed(found.cells)
        (incident,) = [one for one in seen.engine.incidents if one.severity != "info"]
        first = incident.start_ns // axis.cell_ns
        assert {found.within(heat.MapRow((gpu,)), axis)[0][0] for gpu in range(8)} == {first}, "one holds the others"
        at = seen.engine.incidents.index(incident)
        seen.engine.incidents[at] = replace(incident, victims=[], gpu=5, trainer_pid=None, cause="gpu-throttle")
        main(app).drawing.redraw()
        found = main(app).drawing.gpus.heat
        assert found is not None
        assert [gpu for gpu in range(8) if found.within(heat.MapRow((gpu,)), axis)] == [5]


async def test_enter_opens_a_selected_process_and_g_goes_back_to_the_gpus(make_app: MakeApp) -> None:
    app = make_app(scene.ranks(8, LATE))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        await pilot.press("down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, DetailsScreen)
        await pilot.press("escape", "g", "enter")
        await pilot.pause()
        assert isinstance(app.screen, EnlargeScreen)


async def test_a_column_is_made_once(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    session = scene.ranks(8, LATE)
    app = make_app(session)
    async with app.run_test(size=(220, 60)) as pilot:
        await pilot.pause()
        made: list[int] = []
        monkeypatch.setattr(heat, "column", lambda *args, column=heat.column: made.append(args[2]) or column(*args))
        for i in range(100, 110):
            session.ingest(scene.rank_frame(i, 8, LATE))
            before = len(made)
            main(app).drawing.redraw()
            assert len(made) - before <= 8 * 4, "the new column, and the two that may still change"


def test_the_map_leaves_the_table_and_a_lane_their_rows() -> None:
    for height in (24, 35, 48, 60):
        for gpus in (4, 8, 16, 32):
            heights = arrange(height, gpus, 40, mapped=True)
            assert sum(getattr(heights, part) for part in heights.__struct_fields__) == height
            assert heights.procs >= 8
            assert heights.lanes >= 2
    assert arrange(24, 8, 40, mapped=True).gpus == 9


@pytest.mark.parametrize(("gpus", "height", "mapped"), [(2, 24, False), (2, 18, True), (3, 24, False), (4, 60, True), (1, 12, False)])
def test_few_gpus_have_rows_and_lanes_where_there_is_room(gpus: int, height: int, mapped: bool) -> None:
    assert heat.is_on(scene.session(gpus=gpus).board, View(height=height)) is mapped


def test_a_theme_that_paints_has_a_colour_for_each_step_and_a_tint_behind_it() -> None:
    for theme in ("gputop-night", "nord", "solarized-light"):
        styles = [palette(theme)[f"cell{step}"] for step in range(1, HEAT_LEVELS + 1)]
        assert len({(str(style.color), str(style.bgcolor)) for style in styles}) == HEAT_LEVELS
        assert all(style.bgcolor is not None for style in styles)
    assert all(palette("gputop-dark")[f"cell{step}"].bgcolor is None for step in range(1, HEAT_LEVELS + 1)), "its background is not known"
    assert all(style.color is None and style.bgcolor is None for style in palette("gputop-night", coloured=False).values())
