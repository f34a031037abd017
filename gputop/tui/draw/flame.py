"""A flame graph in cells: a row a level, the outermost frame on top, each frame as wide as its share of the frame zoomed into."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gputop.stacks.flame import FlameFrame, amount_of, share_of
from gputop.system.text import cut, fit
from gputop.tui.draw import Line, Span, room_for

EDGE = "▏"  # left edge of a frame: frames side by side stay apart without a colour
CHOSEN = "▸"  # the same of the chosen frame


class FlameBox(Struct, frozen=True):
    """A frame in its row, ``width`` columns from ``x`` on."""

    frame: FlameFrame
    x: int
    width: int


def layout(top: FlameFrame, width: int) -> list[list[FlameBox]]:
    """Rows of the frames that are at least a column wide: those around ``top``, as wide as the screen, then it and what it called."""
    rows = [[FlameBox(one, 0, width)] for one in top.way]
    level = [top]
    while level:
        level = [child for one in level for child in one.children]
        row = [box for one in level if (box := _box(one, top, width)).width]
        level = [box.frame for box in row]
        rows += [row] if row else []
    return rows


def _box(one: FlameFrame, top: FlameFrame, width: int) -> FlameBox:
    first, end = (round((at - top.start) * width / max(1, top.weight)) for at in (one.start, one.start + one.weight))
    return FlameBox(one, first, end - first)


def lines(rows: Sequence[Sequence[FlameBox]], chosen: FlameFrame, width: int) -> list[Line]:
    """The rows as text; the chosen frame is not filled."""
    out: list[Line] = []
    for row in rows:
        spans: list[Span] = []
        at = 0
        for box in row:
            if box.x > at:
                spans.append((" " * (box.x - at), ""))
            is_chosen = box.frame is chosen
            name = fit(cut(box.frame.name, box.width - 1), box.width - 1)
            spans.append(((CHOSEN if is_chosen else EDGE) + name, "flame-chosen" if is_chosen else f"flame-{box.frame.kind}"))
            at = box.x + box.width
        out.append([*spans, (" " * (width - at), "")])
    return out


def about(chosen: FlameFrame, root: FlameFrame, unit: str, width: int) -> list[str]:
    """The whole name of a frame in two lines, always as many, so that the graph stands still; its share of all and of what called it."""
    room, name = room_for(chosen.full, width), chosen.full
    if len(name) > 2 * room:  # the end of the path says more than its beginning
        head = cut(name, min(len(chosen.line.name), 2 * room - 2 * room // 3))
        name = f"{head} …{name[len(head) + 2 - 2 * room :]}"
    caller = chosen.parent
    of_caller = f", {share_of(chosen, caller)} of what its caller takes" if caller is not None and caller is not root else ""
    return [name[:room], name[room : 2 * room], f"{share_of(chosen, root)} ({amount_of(chosen.weight, unit)}){of_caller}"]


def moved(rows: Sequence[Sequence[FlameBox]], chosen: FlameFrame, across: int, down: int) -> FlameFrame:
    """The frame that the cursor gets to: in its row, to what called it, or to the nearest frame that it called; itself at an end."""
    y = next((i for i, row in enumerate(rows) for box in row if box.frame is chosen), 0)
    x = next((i for i, box in enumerate(rows[y]) if box.frame is chosen), 0)
    if across:
        return rows[y][min(len(rows[y]) - 1, max(0, x + across))].frame
    if down < 0:
        return rows[y - 1][_under(rows[y - 1], rows[y][x])].frame if y > 0 else chosen
    called = [box.frame for box in rows[y + 1] if box.frame.parent is chosen] if y + 1 < len(rows) else []
    return called[0] if called else chosen


def _under(row: Sequence[FlameBox], box: FlameBox) -> int:
    return next((i for i, one in enumerate(row) if one.frame is box.frame.parent), 0)
