"""Moving in time: pause, scrub, zoom. Pure changes of a `View`; the stream goes on being read meanwhile."""

from __future__ import annotations

from gputop.diagnosis import Incident
from gputop.session.session import Session
from gputop.tui.draw.axis import WINDOWS_S, Axis, cell_for
from gputop.tui.view import View


def axis_of(view: View, session: Session) -> Axis:
    """The charts' columns now."""
    interval = session.header.interval_ns if session.header else 100_000_000
    cell = cell_for(view.window_s, view.cells, interval)
    return Axis(cell, view.end(session) // cell, view.cells)


def toggle_pause(view: View, session: Session) -> None:
    """Hold the screen where it is, or follow the stream again."""
    if view.end_ns is None:
        view.end_ns = session.now_ns
    else:
        follow(view)


def follow(view: View) -> None:
    """Back to now."""
    view.end_ns = view.cursor_ns = None


def scrub(view: View, session: Session, columns: int) -> None:
    """Move the cursor by columns, pausing first; at the left edge the window moves along, at the right one it stops at now."""
    axis = axis_of(view, session)
    go_to(view, session, (view.at_ns or session.now_ns) + columns * axis.cell_ns)


def go_to(view: View, session: Session, t_ns: int) -> None:
    """Put the cursor on a moment, within what is remembered, and show it."""
    if view.end_ns is None:
        view.end_ns = session.now_ns
    view.cursor_ns = max(session.oldest_ns, min(t_ns, session.now_ns))
    axis = axis_of(view, session)
    if view.cursor_ns < axis.first * axis.cell_ns:
        view.end_ns = view.cursor_ns + (axis.columns * 3 // 4) * axis.cell_ns
    elif view.cursor_ns > view.end_ns:
        view.end_ns = min(session.now_ns, view.cursor_ns + (axis.columns // 4) * axis.cell_ns)


def zoom(view: View, steps: int) -> None:
    """A longer (positive) or shorter time base, from 10 s to 10 min."""
    at = WINDOWS_S.index(view.window_s) if view.window_s in WINDOWS_S else WINDOWS_S.index(60)
    view.window_s = WINDOWS_S[min(len(WINDOWS_S) - 1, max(0, at + steps))]


def next_incident(view: View, session: Session, direction: int) -> Incident | None:
    """Put the cursor where the next incident in a direction is first told; which that is, None where there is none."""
    known = [one for one in session.engine.incidents if one.start_ns >= session.oldest_ns]
    found = session.next_told(known, view.at_ns or session.now_ns, direction)
    if found is not None:
        go_to(view, session, session.told_ns(found))
    return found
