"""The frame: where there is room, in each row, at no cost of rows; titles and keys in its edges, and clicks beside it."""

from __future__ import annotations

import pytest
from textual.geometry import Region

from gputop.tui.app import GputopApp
from gputop.tui.draw import frame
from gputop.tui.widgets import Drawn, Painter, cells_of
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import main, part

LEFT, RIGHT = frozenset("╭├│╰"), frozenset("╮┤│╯")


def rows_of(app: GputopApp) -> list[str]:
    """The rows of the whole screen, as Textual draws them."""
    drawn = [widget for widget in app.screen_stack[0].query(Drawn) if widget.display]
    strips = [strip for one in drawn for strip in one.render_lines(Region(0, 0, *one.size))]
    return [strip.text for strip in strips]


@pytest.mark.parametrize(
    ("size", "framed"),
    [((80, 24), False), ((99, 40), False), ((100, 29), False), ((100, 30), True), ((120, 35), True), ((220, 60), True)],
)  # fmt: skip
@pytest.mark.parametrize("gpus", [0, 2, 8])
async def test_each_row_has_its_edges_where_there_is_room(make_app: MakeApp, size: tuple[int, int], framed: bool, gpus: int) -> None:
    app = make_app(scene.session(gpus=gpus))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        rows = rows_of(app)
        assert len(rows) == size[1]
        assert {len(row) for row in rows} == {size[0]}
        if framed:
            assert {row[0] for row in rows} <= LEFT
            assert {row[-1] for row in rows} <= RIGHT
            assert (rows[0][0], rows[-1][-1]) == ("╭", "╯")
            assert rows[0].startswith("╭ gputop")
        else:
            assert not LEFT & {row[0] for row in rows if "e why" not in row}
        assert [len(part(app, name)) for name in ("header", "verdict", "keys")] == [1, 3 if size[1] >= 24 else 2, 1]


async def test_edges_hold_titles_and_keys_that_can_be_clicked(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(200, 50)) as pilot:
        await pilot.pause()
        assert part(app, "lanes")[0].startswith("v lanes ")
        heading = part(app, "procs")[0]
        assert "─" in heading
        await pilot.click("#procs", offset=(app.context.view.inset + heading.index("filter"), 0))
        await pilot.pause()
        assert main(app).filter_line.is_open


async def test_a_frame_goes_with_the_size_and_is_ascii_where_asked(make_app: MakeApp) -> None:
    app = make_app(ascii_only=True)
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        assert all(ord(char) < 127 for row in rows_of(app) for char in row)
        assert {row[-1] for row in rows_of(app)} <= {"|", "+"}
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert app.context.view.inset == 0
        assert rows_of(app)[0].startswith("gputop")


@pytest.mark.parametrize("moved", [1, 3])
def test_an_edge_stays_while_the_lane_before_it_moves(moved: int) -> None:
    """DCH moves all that stands right of the cursor, and ICH puts the edge back: the sequence played on a row gives the new one."""
    painter = Painter({}, None)
    lane = "▁▂▃▄▅▆▇"
    old, new = (cells_of([("│ label ", ""), (text, ""), ("│", "frame")], 16) for text in (lane, (lane + "▁▁▁")[moved : moved + 7]))
    sent = painter.change(0, 4, old, new, 8, moved, 1)
    assert f"\x1b[{moved}P" in sent
    assert f"\x1b[{moved}@" in sent
    assert played(old.text, sent) == new.text
    assert len(sent) < 40, "neither the edge nor the lane is sent again"


def played(row: str, sent: str) -> str:
    """The row after a terminal has obeyed the sequences: CUP and CHA, DCH, ICH, text."""
    cells, at, left = list(row), 0, sent
    while left:
        if not left.startswith("\x1b["):
            cells[at], at, left = left[0], at + 1, left[1:]
            continue
        end = next(i for i, char in enumerate(left) if (char.isalpha() and i > 1) or char == "@")
        numbers, what, left = left[2:end], left[end], left[end + 1 :]
        count = int(numbers.split(";")[-1] or 1) if what != "m" else 0
        if what in "HG":
            at = count - 1
        elif what == "P":
            cells = [*cells[:at], *cells[at + count :], *" " * count]
        elif what == "@":
            cells = [*cells[:at], *" " * count, *cells[at : len(cells) - count]]
    return "".join(cells)


def test_wide_blanks_of_an_edge_are_a_line_and_others_are_not() -> None:
    (line,) = frame.filled("gpus", [[("GPU util     SM act", "head"), ("  – ", "dim")]], 1, 30)
    text = "".join(part for part, _ in line)
    assert text.startswith("GPU util ─── SM act  – ─")
    assert len(text) == 30
    assert text.endswith("─")
    assert {meaning for part, meaning in line if "─" in part} == {"frame"}
    assert frame.filled("verdict", [[("a     b", "")]], 2, 30) == [[("a     b", "")], []]
