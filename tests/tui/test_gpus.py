"""The rows of GPUs and MIG instances."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from gputop.model.board import Board, GpuBoard
from gputop.model.frame import Frame, GpuProc, MigInstance
from gputop.stream.session import Session
from gputop.tui.draw.gpus import lines
from gputop.tui.draw.lanes import all_lanes
from gputop.tui.draw.table import held_bytes, mean_share, place_of
from gputop.tui.draw.view import View
from gputop.tui.panels import arrange
from gputop.tui.widgets import Scrolled
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import part


def _with_mig(instances: int) -> Session:
    session = scene.session()
    values = session.board.gpus[1].values
    values["mig_mode"] = True
    values["mig"] = [
        MigInstance(i, 7 + i, 0, "", f"1g.{10 + i}gb", 3 * scene.GIB, 10 * scene.GIB, 14, 42.0, util_pct=88.0) for i in range(instances)
    ]
    values["procs"] = [GpuProc(scene.TRAINER, mem_bytes=scene.GIB, gpu_instance=8)]
    session.board.gpus[0].values["procs"] = []
    return session


async def test_mig_instances_that_do_not_fit_are_counted(make_app: MakeApp) -> None:
    app = make_app(_with_mig(5))
    async with app.run_test(size=(80, 24)):
        rows = part(app, "gpus")
        assert "5 MIG instances not shown" in rows[0]
        assert [row.split()[0] for row in rows[1:3]] == ["0", "1"]


async def test_the_heading_says_how_many_gpus_have_a_row_and_cuts_no_title(make_app: MakeApp) -> None:
    session = scene.session()
    board = session.board
    for index in range(2, 16):
        board.gpus[index] = board.gpus[0].copy()
        board.gpus[index].index = index
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        for width in (100, 40):
            await pilot.resize_terminal(width, 24)
            await pilot.pause()
            heading, first = part(app, "gpus")[:2]
            notes = re.search(r"(\d+) of 16 GPUs *$", heading)
            assert notes
            assert int(notes[1]) == len(part(app, "gpus")) - 2, "the last row is the mean of the others"
            assert first.startswith("0 ")
            titles = set(heading[: notes.start()].partition("busy")[0].split())
            assert titles <= {"GPU", "rank", "util", "mem", "power", "cause"}


async def test_mig_instances_have_rows_of_their_own(make_app: MakeApp) -> None:
    app = make_app(_with_mig(2))
    async with app.run_test(size=(160, 48)):
        rows = part(app, "gpus")
        shown = [row.split() for row in rows[1:]]
        assert [row[0] for row in shown] == ["0", "1", "1:0", "1:1"]
        assert shown[3][1:4] == ["1g.11gb", "88%", "42%"]
        assert rows[4].index("88%") == rows[1].index("%") - 2
        assert rows[4].index("3.0/10") == rows[1].index("62.0/")
        assert rows[4].rstrip().endswith("14 SMs")
        assert next(row for row in part(app, "procs") if str(scene.TRAINER) in row).split()[1] == "1:1"


@pytest.mark.parametrize(("gpus", "told"), [
    ([3], "3"), ([0, 1], "0,1"), ([2, 5], "2,5"), ([0, 1, 2, 3], "0-3"), ([8, 9], "8,9"), ([9, 10], "9+1"), ([0, 2, 4], "0+2"),
    ([8, 9, 10, 11], "8+3"),
])  # fmt: skip
def test_where_a_process_is_takes_three_characters(gpus: list[int], told: str) -> None:
    board = Board(gpus={index: GpuBoard(index) for index in gpus})
    assert place_of(board, {index: GpuProc(7) for index in gpus}) == told


async def test_a_process_on_several_gpus_has_what_it_holds_on_all(make_app: MakeApp) -> None:
    session = scene.session()
    for index, held in enumerate((10, 30)):
        session.board.gpus[index].values["procs"] = [GpuProc(scene.TRAINER, mem_bytes=held * scene.GIB, sm_pct=float(held))]
    app = make_app(session)
    async with app.run_test(size=(160, 48)) as pilot:
        row = next(row for row in part(app, "procs") if str(scene.TRAINER) in row).split()
        assert (row[1], "40G" in row, "20" in row) == ("0,1", True, True)
        await pilot.press("home", "enter")
        await pilot.pause()
        told = [" ".join(line.split()) for line in app.screen.query_one(Scrolled).text.split("\n")]
        assert "GPU 0 10G of memory, SM 10 %" in told
        assert "GPU 1 30G of memory, SM 30 %" in told


def test_where_one_gpu_does_not_tell_the_whole_is_not_known() -> None:
    assert held_bytes({0: GpuProc(7, mem_bytes=5), 1: GpuProc(7)}) is None
    assert mean_share([3.0, None]) is None


async def test_a_gpu_of_which_nothing_can_be_read_says_why(make_app: MakeApp) -> None:
    session, why = scene.session(), "the driver failed: Unknown Error"
    gpu = session.board.gpus[1]
    gpu.missing |= dict.fromkeys(gpu.values, why)
    gpu.values.clear()
    app = make_app(session)
    async with app.run_test(size=(160, 48)):
        assert part(app, "gpus")[2].rstrip().endswith(why)


async def test_memory_that_is_the_hosts_is_marked(make_app: MakeApp) -> None:
    session = scene.session()
    session.board.gpus[0].values["mem_shared"] = True
    app = make_app(session)
    async with app.run_test(size=(160, 48)):
        assert ["host memory" in row for row in part(app, "gpus")[1:3]] == [True, False]


async def test_a_click_on_a_mig_instance_chooses_its_gpu(make_app: MakeApp) -> None:
    app = make_app(_with_mig(2))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.click("#gpus", offset=(3, 4))
        assert app.context.view.gpu == 1
        await pilot.click("#gpus", offset=(3, 1))
        assert app.context.view.gpu == 0


async def test_a_mig_instance_that_cannot_be_read_says_why(make_app: MakeApp) -> None:
    session = _with_mig(1)
    why = "the driver timed out"
    session.board.gpus[1].values["mig"] = [MigInstance(3, missing=dict.fromkeys(("mem_used_bytes", "sm_count"), why))]
    app = make_app(session)
    async with app.run_test(size=(160, 48)):
        assert part(app, "gpus")[3].rstrip().split(maxsplit=1) == ["1:3", why]


@pytest.mark.parametrize(("height", "gpus", "shown"), [(24, 4, 4), (24, 8, 4), (30, 8, 8), (48, 16, 8), (60, 16, 16), (80, 16, 16)])
def test_all_gpus_are_shown_where_a_third_of_the_rows_holds_them(height: int, gpus: int, shown: int) -> None:
    heights = arrange(height, gpus, 40)
    assert heights.gpus == 1 + shown
    assert heights.procs >= 8
    assert sum(getattr(heights, part) for part in heights.__struct_fields__) == height


def _split_throughout() -> Session:
    session, why = Session(), "not available while MIG is on"
    missing = {"util_pct": why, "sm_active_pct": why}
    for item in scene.frames(100):
        if isinstance(item, Frame):
            item.gpus[0] = replace(item.gpus[0], util_pct=None, sm_active_pct=None, mig_mode=True, missing=missing)
        session.ingest(item)
    return session


@pytest.mark.parametrize(("size", "has_room"), [((80, 24), False), ((160, 48), True)])
async def test_what_mig_takes_away_takes_no_row_that_another_lane_needs(
    make_app: MakeApp, size: tuple[int, int], has_room: bool
) -> None:
    app = make_app(_split_throughout())
    async with app.run_test(size=size):
        assert part(app, "gpus")[1].startswith("0")
        assert "not under MIG" in part(app, "gpus")[1]
        assert any("GPU 0 util" in row for row in part(app, "lanes")) is has_room
        assert any("GPU 1 util" in row for row in part(app, "lanes"))


def test_where_gpm_tells_of_kernels_they_have_a_lane_beside_utilization() -> None:
    session = scene.session()
    assert "GPU 0 GR act" not in [lane.title for lane in all_lanes(session, View())]
    frame = list(scene.frames(101))[-1]
    assert isinstance(frame, Frame)
    frame.gpus = [replace(gpu, gr_active_pct=7.0) if gpu.util_pct is not None else gpu for gpu in frame.gpus]
    session.ingest(frame)
    titles = [lane.title for lane in all_lanes(session, View())]
    assert titles[:2] == ["GPU 0 util", "GPU 0 GR act"]


@pytest.mark.parametrize(
    ("rx", "tx", "told"),
    [(11.9e6, 0.3e6, "11.9/0.3 MB/s"), (312e6, 99.9e6, "312/99.9 MB/s"), (58.31e9, 0.2e9, "58.3/0.2 GB/s"), (0.0, 0.0, "0.0/0.0 MB/s")],
)
def test_a_rate_over_pcie_is_in_the_unit_in_which_it_is_not_zero(rx: float, tx: float, told: str) -> None:
    board, older = scene.session().board, scene.session().board
    for one, seconds in ((older, 0), (board, 1)):
        gpu = one.gpus[0]
        gpu.values |= {"pcie_rx_bytes": int(rx * seconds), "pcie_tx_bytes": int(tx * seconds)}
        gpu.read_ns |= dict.fromkeys(("pcie_rx_bytes", "pcie_tx_bytes"), seconds * 10**9)
    heading, first, *_ = lines(board, older, View(width=140), 4)
    row, column = "".join(text for text, _ in first), "".join(text for text, _ in heading).index("pcie rx/tx")
    assert row[column:].startswith(f"{told} ")


async def test_no_gpu_has_its_reason(make_app: MakeApp) -> None:
    session = scene.session()
    session.board.gpus.clear()
    app = make_app(session)
    async with app.run_test(size=(80, 24)):
        assert "none: the driver lists no GPU" in part(app, "gpus")[0]


async def test_the_first_line_cuts_nothing_but_the_host(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        for columns in range(60, 130, 7):
            await pilot.resize_terminal(columns, 24)
            await pilot.pause()
            assert "…" not in part(app, "header")[0]
