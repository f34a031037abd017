"""Every screen over a hostile stream draws nothing that a terminal obeys."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from gputop.stream.history import History
from gputop.stream.session import Session
from gputop.system.text import clean
from gputop.tui.app import GputopApp
from gputop.tui.box import ConfirmScreen
from gputop.tui.colours import palette
from gputop.tui.draw import safe_line, table
from gputop.tui.draw.table import ProcessRow
from gputop.tui.draw.view import Axis, View
from gputop.tui.widgets import Drawn, Painter, Scrolled, cells_of
from tests.recording import hostile
from tests.tui import scene
from tests.tui.conftest import MakeApp

OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u202e]")


def seen(gpus: int) -> Session:
    session = Session()
    for item in hostile.stream(60, gpus):
        session.ingest(item)
    return session


def drawn(app: GputopApp) -> str:
    """The text of the whole screen."""
    return "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip if not segment.control)


@pytest.mark.parametrize(("gpus", "ascii_only"), [(2, False), (0, True)])
async def test_screens(make_app: MakeApp, gpus: int, ascii_only: bool) -> None:
    app = make_app(seen(gpus), ascii_only=ascii_only)
    app.context.look.remote = True
    async with app.run_test(size=(200, 50)) as pilot:
        await pilot.pause()
        for keys in ("", "e", "w", "z", "s", "question_mark", "down enter", "o"):
            await pilot.press(*keys.split())
            await pilot.pause()
            text = drawn(app)
            assert OBEYED.findall(text) == [], keys
            assert "evil" in text, keys
            await pilot.press("escape")


def test_past_the_compositor_nothing_gets_through_either() -> None:
    lines = [[("a", ""), (hostile.EVIL, "warn"), ("日本\x00", "")]]
    (line,) = map(safe_line, lines)
    assert OBEYED.findall("".join(text for text, _ in line)) == []
    sent = Painter(palette(""), None).change(0, 0, cells_of([], 40), cells_of(line, 40), 0, 0)
    assert OBEYED.findall(sent.replace("\x1b[1;1H", "")) == []


async def test_what_is_shown_is_what_is_safe(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        part = app.screen.query_one("#verdict", Drawn)
        part.show([[(hostile.EVIL, "")]])
        assert OBEYED.findall(part.line_text(0)) == []


async def test_what_is_wrong_with_the_stream_is_safe(make_app: MakeApp) -> None:
    app = make_app(seen(2))
    app.context.feed.trouble = f"ended: {hostile.EVIL}"
    async with app.run_test(size=(200, 50)) as pilot:
        await pilot.pause()
        assert "ended: " in drawn(app)
        assert OBEYED.findall(drawn(app)) == []


async def test_whom_a_signal_is_for_is_safe(make_app: MakeApp) -> None:
    app = make_app(seen(2))
    async with app.run_test(size=(200, 50)) as pilot:
        await pilot.press("down", "K")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmScreen)
        assert "evil" in drawn(app)
        assert OBEYED.findall(drawn(app)) == []


@pytest.mark.parametrize("name", [
    "学習データ読み込み処理.py", "🚀🔥👩\u200d👩\u200d👧", "e\u0301a\u0308" * 20, "مرحبا بالعالم", "ที่นี่ภาษาไทย", "हिन्दी",
    "🇯🇵🇩🇪", "☃️⚠️❤️", "\u1100\u1161\u11a8" * 20,
    "a\ue0b0\U000e0100\u00ad", "漢" * 9 + "a漢",
])  # fmt: skip
@pytest.mark.parametrize("width", [80, 160, 300])
def test_columns_stay_where_they_are_whatever_a_process_is_called(name: str, width: int) -> None:
    row = ProcessRow(7, None, 0, clean(name, 80), "running", False, False, clean(name, 32))
    (line,) = map(safe_line, [table.TableDrawer().line(row, View(width=width), History(1), Axis(1, 0, 0), None)])
    before, state, _ = "".join(text for text, _ in line).partition("running")
    columns = [column.title for column in table.columns(width)]
    assert state
    assert cell_len(before) == sum(column.width for column in table.columns(width)[: columns.index("STATE")])


async def test_a_wide_command_is_folded_once(make_app: MakeApp) -> None:
    session = scene.session()
    infos = session.board.infos
    infos[scene.HOG] = replace(infos[scene.HOG], cmdline=["A漢🚀" * 40])
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        app.context.view.selected = scene.HOG
        await pilot.press("enter")
        await pilot.pause()
        text = app.screen.query_one(Scrolled).text
        rows = [row for row in text.split("\n") if "漢" in row]
        assert len(rows) == 3
        assert rows[0].index("A漢") == 20
        assert all(row.startswith(" " * 20) for row in rows[1:])
