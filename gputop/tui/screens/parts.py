"""What the parts of the dashboard show: the lines of each, from what is known now. When they are drawn is `dashboard`'s business."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, cast

from textual.screen import Screen

from gputop.session.session import Session
from gputop.system.text import file_size, fit
from gputop.tui import navigate
from gputop.tui.draw import Line, Span, axis, chosen, gpus, header, keys, procs, verdict
from gputop.tui.draw.lanes import Lane, LaneDrawer
from gputop.tui.draw.rows import Row
from gputop.tui.layout import TOO_SMALL, Heights, is_too_small
from gputop.tui.view import View

if TYPE_CHECKING:
    from gputop.tui.app import GputopApp


SILENT_S, UNBEGUN_S = 2.0, 10.0
"""A reading that is late by more than this is missed; the first one, of a stream that has still to begin."""


class Parts(Screen[None]):
    """Header, verdict, GPUs, lanes, table and keys, each as lines."""

    PARTS: tuple[str, ...] = ("header", "verdict", "gpus", "lanes", "procs", "keys")
    """Top to bottom."""
    KEYS = keys.KEYS
    """What the last line names."""

    def __init__(self) -> None:
        super().__init__()
        self._heights = Heights()
        self._drawer = LaneDrawer()
        self._states = procs.StateLanes()
        self._rows: list[Row] = []
        self._numbers_ns = 0
        """The moment that numbers are shown for: the lanes grow in between, what stands beside them says what the GPUs' rows say."""
        self._note = ("", 0.0)
        self._started = (time.monotonic(), time.process_time())
        self._own = ("", 0.0)

    @cached_property
    def gputop(self) -> GputopApp:
        """The application, by its own type; looked up once, for Textual finds it anew each time."""
        return cast("GputopApp", self.app)

    @property
    def view(self) -> View:
        """How the stream is looked at."""
        return self.gputop.view

    @property
    def session(self) -> Session:
        """What is known."""
        return self.gputop.session

    def _lines_of(self, part: str, found: list[Lane]) -> list[Line]:
        """A part's lines; before the first frame nothing is claimed that is not known yet."""
        session, view = self.session, self.view
        known = session.board.seq >= 0
        if self.is_too_small:
            return [[(fit(TOO_SMALL, view.width), "warn")]] if part == "header" else []
        if part == "header":
            return header.lines(session, view, self._mode(), self._cost(), self._recording(), self._is_still)
        if part == "keys":
            return keys.lines(view, self._note[0] if time.monotonic() < self._note[1] else "", self.KEYS)
        if part == "verdict":
            return self._verdict(known)
        if not known:
            return []
        return {"gpus": self._gpus, "lanes": lambda: self._lanes(found), "procs": self._procs}[part]()

    @property
    def is_too_small(self) -> bool:
        """Whether the terminal has room for no more than a line that says so."""
        return is_too_small(self.view.width, self.view.height)

    def _verdict(self, known: bool) -> list[Line]:
        session, view, trouble = self.session, self.view, self.gputop.feed.trouble or self._silence()
        if not known:
            return [[(f" {trouble or 'starting: the first readings are on their way'}", "crit" if trouble else "dim")]]
        offer = "" if session.board.gpus else offer_of(session)
        return verdict.lines(session.verdict_at(view.at_ns), view, trouble, offer)[: self._heights.verdict]

    def _gpus(self) -> list[Line]:
        older, newer = self.session.boards_around(self.view.at_ns, 1_000_000_000)
        if newer.gpus:
            return gpus.lines(newer, older, self.view, self._heights.gpus)
        return [[(fit(f" GPU  none: {offer_of(self.session)}", self.view.width), "dim")]]

    def _lanes(self, found: list[Lane]) -> list[Line]:
        session, view = self.session, self.view
        if not self._heights.lanes:
            return []
        columns = navigate.axis_of(view, session)
        cursor = columns.column_of(view.cursor_ns) if view.cursor_ns is not None else None
        end = self.axis_end_s()
        label = f" {columns.columns * columns.cell_ns / 1e9:.0f} s  {columns.cell_ns / 1e9:g} s a column"
        ruler = axis.with_signs(axis.axis_line(columns, end, fit(label, view.label_width)), self._signs(columns))
        shown = chosen.fitting(found, self._heights.lanes - 1)
        drawn = (self._drawer.line(lane, session.history, columns, view.label_width, self._numbers_ns, cursor) for lane in shown)
        return [ruler, *drawn]

    def axis_end_s(self) -> float | None:
        """The clock at the right end of the axis, None where that is now."""
        return None if self.view.end_ns is None else self.session.unix_s(self.view.end_ns)

    def _signs(self, columns: axis.Axis) -> Iterator[tuple[int | None, str, str]]:
        """Markers of the job, and where incidents began."""
        for mark in self.session.marks:
            yield columns.column_of(mark.t_ns), "◆", "accent"
        for incident in self.session.engine.incidents:
            yield columns.column_of(incident.start_ns), "▼", "incident"

    def _procs(self) -> list[Line]:
        session, view = self.session, self.view
        room = self._heights.procs - 1
        if room < 0:
            return []
        width = procs.lane_columns(view)
        columns = navigate.axis_of(view, session).narrowed(width)
        cursor = columns.column_of(view.cursor_ns) if view.cursor_ns is not None else None
        view.top_row = scrolled(view.top_row, self.selected_row(), room, len(self._rows))
        shown = self._rows[view.top_row : view.top_row + room]
        lines = [procs.heading(view, width), *(procs.line(row, view, session.history, columns, self._states, cursor) for row in shown)]
        if not self._rows:
            lines.append([(f"  {self._nobody()}", "dim")])
        return lines

    def _nobody(self) -> str:
        """Why the table is empty."""
        pid = self.view.pid
        if pid is not None and pid not in self.session.boards_around(self.view.at_ns, 0)[1].infos:
            return f"there is no process {pid}: it has ended (← looks back), or never was"
        if self.view.pattern:
            return "nothing matches the filter"
        if self.view.user:
            return f"no process of {self.view.user} trains, is on a GPU or takes CPU"
        return f"no trainer, no GPU process{f'; {procs.HIDDEN}' if self.view.hides_bystanders else ' and nobody taking CPU'}"

    def selected_row(self) -> int | None:
        """Where the selected process stands in the table."""
        return next((i for i, row in enumerate(self._rows) if row.pid == self.view.selected), None)

    @property
    def rows(self) -> list[Row]:
        """The table's rows as last drawn."""
        return self._rows

    def _mode(self) -> Span:
        if self.view.end_ns is not None:
            return ("|| PAUSED", "warn")
        if self.gputop.feed.ended:
            return ("■ ENDED", "warn")
        if self.session.header is None or self.session.board.seq < 0:
            return ("starting", "dim")
        if silent_s := self._silent_s():
            return (f"■ SILENT {silent_s} s", "crit")
        interval = self.session.header.interval_ns // 1_000_000
        return (f"● LIVE {interval} ms", "good")

    @property
    def _is_still(self) -> bool:
        """Whether time stands on this screen."""
        return self.view.end_ns is not None

    def _silent_s(self) -> int:
        """Whole seconds since the last reading came, 0 where none is overdue."""
        header, silent_s = self.session.header, self.gputop.feed.silent_s
        return int(silent_s) if silent_s > (SILENT_S + 2 * header.interval_ns / 1e9 if header else UNBEGUN_S) else 0

    def _silence(self) -> str:
        """That no reading comes, and where to look; empty where none is overdue."""
        silent_s, header = self._silent_s(), self.session.header
        if not silent_s:
            return ""
        if self.gputop.is_remote:
            return f"no reading for {silent_s} s: look after the connection{f' to {header.host}' if header else ''}"
        return f"no reading for {silent_s} s: gputop collect hangs; if it was stopped, kill -CONT"

    def _recording(self) -> str:
        recorder = self.gputop.feed.recorder
        size = recorder.size
        if size is None:
            return "■ REC ENDED" if recorder.broke else ""
        return f"● REC {file_size(size)}"

    def _cost(self) -> str:
        from gputop.tui.app import own_cost

        if time.monotonic() - self._own[1] > 1:
            self._own = (own_cost(self.session, self._started), time.monotonic())
        return self._own[0]


def scrolled(top: int, selected: int | None, room: int, total: int) -> int:
    """The first row to show, so that the selected one is in sight and no room is wasted."""
    if selected is not None:
        top = min(max(top, selected - room + 1), selected)
    return max(0, min(top, total - room))


def offer_of(session: Session) -> str:
    """Why there is no GPU, and what can be seen without one."""
    nvml = session.board.sources.get("nvml")
    if session.header is None or nvml is None or nvml.state == "ok":
        return ""
    return f"{nvml.reason}; gputop demo shows everything with a simulated GPU"
