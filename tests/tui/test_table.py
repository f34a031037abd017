"""The process table: culprits under the job that they hurt, folded families, columns by what there is to show and by choice."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputop.model.process import ProcInfo
from gputop.stream.history import History
from gputop.stream.session import Session
from gputop.system import screenstate
from gputop.tui.choice_box import ColumnsScreen
from gputop.tui.draw import table
from gputop.tui.draw.lanes import merge
from gputop.tui.draw.table import SHARES, ProcessRow, columns, glyph, rows
from gputop.tui.draw.view import Axis, View
from gputop.tui.draw.words import Words, arguments_of
from gputop.tui.widgets import Scrolled
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import main, part


def at(app: object, pid: int) -> int:
    """Row of a process on the screen, counted from the table's heading."""
    return next(number for number, line in enumerate(part(app, "procs")) if f" {pid} " in line)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(80, 24), (120, 35), (220, 60)])
async def test_a_culprit_stands_under_the_trainer_that_it_hurts(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert [at(app, pid) for pid in (scene.TRAINER, scene.HOG, *scene.WORKERS)] == [1, 2, 3, 4, 5, 6]
        line = part(app, "procs")[2]
        assert f"{table.CULPRIT_MARK} evil" in line
        assert ("takes 0.9 of 4 CPUs" if size[0] >= table.WIDE_FROM else "takes 0.9 CPU") in line
        assert SHARES[8] in line[-10:]
        await pilot.press("b")
        assert at(app, scene.HOG) == 2


async def test_a_bystander_is_no_culprit_and_has_its_lane(make_app: MakeApp) -> None:
    app = make_app(scene.session(starving=False))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        line = part(app, "procs")[at(app, scene.HOG)]
        assert at(app, scene.HOG) == 6
        assert table.CULPRIT_MARK not in line
        assert SHARES[8] in line[-10:]


def test_rows_by_remembered_words_are_those_made_anew() -> None:
    session, known = scene.session(), dict[int, Words]()
    session.board.infos[scene.TRAINER] = replace(session.board.infos[scene.TRAINER], cmdline=["python", "train.py", "--old"])
    assert rows(session, View(), known) == rows(session, View())
    first = known[scene.WORKERS[0]]
    session.board.infos[scene.TRAINER] = replace(session.board.infos[scene.TRAINER], cmdline=["python", "train.py", "--new"])
    later = rows(session, View(), known)
    assert later == rows(session, View())
    assert later[0].arguments == "--new"
    assert known[scene.WORKERS[0]] is first, "its command line is the same"
    assert known.keys() == {row.pid for row in later}


def test_culprits_of_one_sort_order_stay_with_their_job() -> None:
    shown = rows(scene.session(), View(sort="cpu"))
    assert [row.pid for row in shown[:2]] == [scene.TRAINER, scene.HOG]
    flat = rows(scene.session(), View(sort="cpu", tree=False))
    assert flat[0].pid == scene.HOG


def test_many_culprits_leave_the_workers_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    session = scene.session()
    hogs = [903, 904, 905, 906, 907]
    for pid in hogs[1:]:
        session.board.infos[pid], session.board.procs[pid] = session.board.infos[903], session.board.procs[903]
    monkeypatch.setattr(table, "culprits_at", lambda *_: dict.fromkeys(hogs, scene.TRAINER))
    shown = [row.pid for row in rows(session, View())]
    assert shown == [scene.TRAINER, *hogs[:3], *scene.WORKERS, *hogs[3:]]


async def test_a_family_is_folded_by_a_click_or_by_space(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        line = part(app, "procs")[1]
        await pilot.click("#procs", offset=(app.context.view.inset + line.index(table.OPEN), 1))
        assert f"{table.FOLDED} +4 train.py" in part(app, "procs")[1]
        assert not any(str(worker) in line for worker in scene.WORKERS for line in part(app, "procs"))
        assert at(app, scene.HOG) == 2
        await pilot.press("space")  # the click selected the trainer
        assert at(app, scene.WORKERS[0]) == 3
        assert app.context.view.end_ns is None
        await pilot.press("escape", "space")
        assert app.context.view.end_ns is not None


@pytest.mark.parametrize(("gpus", "is_there"), [(1, False), (2, True), (8, True)])
def test_the_gpus_column_is_there_where_there_are_several(gpus: int, is_there: bool) -> None:
    view = View(width=80)
    rows(scene.session(gpus=gpus), view)
    assert ("GPU" in [column.title for column in table.columns_of(view)]) is is_there


@pytest.mark.parametrize("width", range(20, 240, 20))
def test_columns_fit_and_leave_room_for_the_lane(width: int) -> None:
    fitting = columns(width, frozenset(("GPU", "JOB")))
    assert sum(column.width for column in fitting) <= max(width, 41)
    assert width < 120 or width - sum(column.width for column in fitting) >= 20


async def test_columns_are_chosen_and_kept(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("f2")
        assert isinstance(app.screen, ColumnsScreen)
        assert "[x] CPU%" in app.screen.query_one(Scrolled).text
        await pilot.press(*["down"] * table.TITLES.index("CPU%"), "space")
        assert "[ ] CPU%" in app.screen.query_one(Scrolled).text
        await pilot.press("home", *["up"] * 20, "space")  # PID stays
        assert "[x] PID" in app.screen.query_one(Scrolled).text
        await pilot.press("escape")
        await pilot.pause()
        assert "CPU%" not in part(app, "procs")[0]
        assert "PID" in part(app, "procs")[0]
        screenstate.save(screenstate.Saved(columns=app.context.view.columns))
        assert "RUNQ%" in screenstate.load().columns
        await pilot.press("f2", "a", "escape")
        assert app.context.view.columns == ()
        main(app).drawing.redraw()
        assert "CPU%" in part(app, "procs")[0]


@pytest.mark.parametrize(
    ("cmdline", "arguments"),
    [
        (["python", "-u", "/srv/train.py", "--lr", "0.1"], "--lr 0.1"),
        (["/usr/bin/ffmpeg", "-i", "a\x1b[2J.mp4"], "-i a·[2J.mp4"),
        (["bash", "run.sh", "x"], "x"), (["nginx: worker process"], ""), ([], ""),
    ],
)  # fmt: skip
def test_arguments_follow_the_programs_name(cmdline: list[str], arguments: str) -> None:
    found = arguments_of(ProcInfo(1, 1, 0, 0, "u", (cmdline or ["kworker"])[0].rpartition("/")[2][:15], cmdline))
    assert found == arguments


def test_a_sorted_column_is_marked() -> None:
    view = View(width=120, sort="cpu", reverse=True)
    heading = "".join(text for text, _ in table.heading(view, 20))
    assert "CPU%▲" in heading
    view.reverse = False
    assert "CPU%▼" in "".join(text for text, _ in table.heading(view, 20))


def test_a_culprits_share_stands_until_it_is_read_again() -> None:
    session: Session = scene.session()
    history, now_ns = session.history, session.now_ns
    assert history.share_cell(scene.HOG, now_ns - 100_000_000, now_ns + 1) == 8
    assert not history.share_cell(scene.WORKERS[0], now_ns - 100_000_000, now_ns + 1)
    history.tick(now_ns + 1_000_000_000)
    assert history.share_cell(scene.HOG, now_ns + 1_000_000_000, now_ns + 1_000_000_001) == 8


@pytest.mark.parametrize("cell_ns", [40_000_000, 100_000_000, 500_000_000])
def test_states_that_come_late_fill_their_cells(cell_ns: int) -> None:
    """Of many jobs states come every two seconds; a row that is drawn meanwhile has no gap then."""
    history, moving, tick_ns = History(100_000_000), table.TableDrawer(), 100_000_000
    view, row = View(width=120), ProcessRow(7, None, 0, "train.py", "running", False, False, "ann")
    for tick in range(1, 83):
        history.tick(tick * tick_ns)
        if tick % 20 == 0:
            history.put_state(7, 1 + tick // 20 % 3, (tick - 20) * tick_ns)
        axis = Axis(cell_ns, tick * tick_ns // cell_ns, 30)
        seen = moving.line(row, view, history, axis, None)
        if tick % 3 == 0:
            assert merge(seen) == merge(table.TableDrawer().line(row, view, history, axis, None))
    codes = [history.state_cell(7, k * cell_ns, (k + 1) * cell_ns) for k in range(axis.first, axis.last + 1)]
    assert "".join(text for text, _ in seen)[-30:] == "".join(glyph(code)[0] for code in codes)
    assert any(codes)


async def test_a_key_that_does_nothing_is_answered(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.press("u", "7")
        assert "7 does nothing here" in part(app, "keys")[0]
        await pilot.press("t")
        assert "does nothing" not in part(app, "keys")[0]


@pytest.mark.parametrize(("key", "named"), [("e", "p prove"), ("z", "d distribution"), ("question_mark", "/ find"), ("f2", "space show")])
async def test_the_last_line_has_the_keys_of_the_box_that_is_open(make_app: MakeApp, key: str, named: str) -> None:
    app = make_app()
    async with app.run_test(size=(120, 35)) as pilot:
        dashboard = main(app)
        before = dashboard.drawing.keys.widget.line_text(0)
        await pilot.press(key)
        line = dashboard.drawing.keys.widget.line_text(0)
        assert named in line
        await pilot.click(offset=(line.index("Esc close") + 1, 34))
        await pilot.pause()
        assert app.screen is dashboard
        assert dashboard.drawing.keys.widget.line_text(0) == before


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_the_help_finds_words(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await pilot.press("question_mark", "slash", *"quita", "backspace", "enter")
        text = app.screen.query_one(Scrolled).text
        assert "find: quit " in text
        assert "ctrl c" in text
        assert "families" not in text
        await pilot.press("slash", "z", "q", "x")
        assert "nothing has it" in app.screen.query_one(Scrolled).text
        await pilot.press("escape")
        assert "families" in app.screen.query_one(Scrolled).text
        await pilot.press("escape")
        assert app.screen is app.screen_stack[0]


async def test_the_question_before_a_signal_has_user_gpu_and_the_whole_command(make_app: MakeApp) -> None:
    session = scene.session()
    infos = session.board.infos
    infos[scene.TRAINER] = replace(infos[scene.TRAINER], cmdline=[*scene.COMMAND, "--out", "x" * 90 + "end"])
    app = make_app(session)
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.press("down", "f9")
        text = app.screen.query_one(Scrolled).text.replace("\n", "")
        assert "user ada" in text
        assert "GPU 0" in text
        assert "xend" in text
        await pilot.press("escape")


def test_a_culprit_that_takes_little_does_not_take_nothing() -> None:
    assert table._takes(4.0, 2) == ("takes 4% CPU", "takes 4% of a CPU")
    assert table._takes(90.0, 4) == ("takes 0.9 CPU", "takes 0.9 of 4 CPUs")
    assert table._takes(1250.0, 192)[1] == "takes 12.5/192 CPUs"  # whole in its column
