"""The rows of GPUs and MIG instances."""

from __future__ import annotations

from gputop.frame import GpuProc
from gputop.frame import MigInstance
from gputop.session import Session
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


async def test_a_click_on_a_mig_instance_chooses_its_gpu(make_app: MakeApp) -> None:
    app = make_app(_with_mig(2))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.click("#gpus", offset=(3, 4))
        assert app.view.gpu == 1
        await pilot.click("#gpus", offset=(3, 1))
        assert app.view.gpu == 0


async def test_a_mig_instance_that_cannot_be_read_says_why(make_app: MakeApp) -> None:
    session = _with_mig(1)
    why = "the driver timed out"
    session.board.gpus[1].values["mig"] = [MigInstance(3, missing=dict.fromkeys(("mem_used_bytes", "sm_count"), why))]
    app = make_app(session)
    async with app.run_test(size=(160, 48)):
        assert part(app, "gpus")[3].rstrip().split(maxsplit=1) == ["1:3", why]
