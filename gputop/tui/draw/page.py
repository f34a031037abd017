"""One moment as a page of text: what `gputop --once` prints."""

from __future__ import annotations

from gputop.session.session import Session
from gputop.tui.draw import Line, gpus, table
from gputop.tui.draw.edges import header_lines, verdict_lines
from gputop.tui.draw.rows import rows
from gputop.tui.draw.view import Axis, View


def page(session: Session, view: View) -> list[Line]:
    """Header, verdict, GPUs and processes; one moment has no lanes."""
    older, newer = session.boards_around(None, 0)
    no_axis, drawer = Axis(1, 0, 0), table.TableDrawer()
    state = newer.sources.get("nvml")
    known = "unknown" if state is not None and state.state == "partial" else "none"
    absent: list[Line] = [[(f" GPU  {known}{f': {state.reason}' if state else ''}", "dim")]]
    return [
        *header_lines(session, view, ("", ""), ""),
        *verdict_lines(session.engine.verdict, view, keys=())[: 2 if session.engine.verdict.detail else 1],
        *(gpus.lines(newer, older, view, gpus.count(newer) + 1) if newer.gpus else absent),
        table.heading(view, 0),
        *(drawer.line(row, view, session.history, no_axis, None) for row in rows(session, view)),
    ]
