"""Decides when the dashboard's panels are drawn: a few times a second, each at its own pace, and at once after a key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from gputop.system.text import fit
from gputop.tui.canvas import Canvas, FilterLine
from gputop.tui.draw import TOO_SMALL, Line, ascii_line, frame, gpus, heat, is_too_small
from gputop.tui.draw.view import Axis
from gputop.tui.feed import Context
from gputop.tui.panels import (
    GpusPanel,
    GuidePanel,
    HeaderPanel,
    Heights,
    KeysPanel,
    LanesPanel,
    Panel,
    ReplayTime,
    ScrubPanel,
    TablePanel,
    Time,
    VerdictPanel,
    WhyPanel,
    arrange,
)
from gputop.tui.terminal import RowScreen
from gputop.tui.widgets import Painter, Row

ROWS_EVERY_S = 0.8  # s between two readings of the table's rows while live
NUMBERS_EVERY_S = 0.7  # s between two drawings of numbers: faster ones cannot be read
LIVE_WAKE_S = 1.0  # s without news after which the screen is drawn: notes end, and the stream may
REPLAY_WAKE_S = 0.45  # s between two drawings of a replay: about the pace of a live screen at 160 columns, whose bytes are as many


class Drawing:
    """Draws the panels of a dashboard."""

    def __init__(self, screen: RowScreen, context: Context, filter_line: FilterLine, wake: Callable[[], None]) -> None:
        """``wake`` is called when it is time to draw though nothing came; ``filter_line`` lies over the keys while it is open."""
        replay = context.replay
        self.time = Time(context) if replay is None else ReplayTime(context, replay)
        self.gpus = GpusPanel(context, self.time)
        self.lanes = LanesPanel(context, self.time)
        self.table = TablePanel(context, self.time)
        self.scrub = None if replay is None else ScrubPanel(context, self.time, replay)
        self.keys = KeysPanel(context, self.time)
        self.guide = [GuidePanel(context, self.time)] if context.look.guide is not None else []
        self.verdict = VerdictPanel(context, self.time)
        self.panels: list[Panel] = [
            HeaderPanel(context, self.time), self.verdict, self.gpus, self.lanes, self.table,
            WhyPanel(context, self.time), *([] if self.scrub is None else [self.scrub]), *self.guide, self.keys,
        ]  # fmt: skip
        self._screen, self._context, self._filter_line = screen, context, filter_line
        self.canvas = Canvas(screen, [panel.widget for panel in self.panels], filter_line)
        self._wake = wake
        self._wake_s = LIVE_WAKE_S if replay is None else REPLAY_WAKE_S
        self._waking: asyncio.TimerHandle | None = None
        self._heights = Heights()
        self._rows_read_s = 0.0
        self._numbers_drawn_s = 0.0
        self._drawn_state: tuple[object, ...] = ()
        self._axis: Axis | None = None
        self._moved = 0  # columns by which the lanes move left with this drawing

    # begin and end

    def begin(self) -> None:
        self.canvas.begin()
        self._wake_later()

    def end(self) -> None:
        if self._waking is not None:
            self._waking.cancel()

    def resize(self, columns: int, rows: int) -> None:
        self._context.view.resize(columns, rows)
        self._heights = Heights()
        self.draw_all()

    def _wake_later(self) -> None:
        """Start the timer again: it runs out only while nothing is drawn."""
        if self._waking is not None:
            self._waking.cancel()
        self._waking = asyncio.get_running_loop().call_later(self._wake_s, self._woken)

    def _woken(self) -> None:
        self._wake_later()
        self._wake()

    # what asks for a drawing

    def redraw(self) -> None:
        """Draw new rows and all panels, after a key."""
        self._rows_read_s = 0.0
        self.draw_all()
        if self._filter_line.is_open:
            self._filter_line.show_found(self.table.found())

    def draw_all(self) -> None:
        """Draw every panel from what is known now."""
        self._draw(everything=True)

    def draw_news(self) -> None:
        """Draw what is due, unless nothing changed, something covers the screen, or the terminal is behind."""
        context = self._context
        # While the screen is paused, which incidents began and ended in the time that it shows is still found out, and the guide goes on.
        end_ns, engine = context.view.end_ns, context.session.engine
        shown = context.session.now_ns if end_ns is None else tuple(
            (one.start_ns, one.end_ns, one.severity) for one in engine.incidents if one.start_ns <= end_ns
        )
        state = (shown, context.feed.trouble, self.time.silent_s, bool(self.keys.note.text), context.look.guide_line, *self.time.state)
        if state != self._drawn_state and self.canvas.is_seen:
            numbers_drawn = self._draw(everything=False)
            # If nothing changes any more, the numbers must still be drawn once, when they are due.
            self._drawn_state = state if numbers_drawn else ()

    def show_note(self, text: str) -> None:
        """Show a note in the last line for a few seconds; only that line is drawn."""
        self.keys.note.show(text)
        self.draw_keys()

    def draw_keys(self) -> None:
        """Draw the last line: it waits for no lock of the stream, and nothing else changes with it."""
        if self.keys.rows and self._is_possible:
            self.canvas.send(self._show(self.keys, self.canvas.painter, moves=False))

    def end_note(self) -> None:
        """Show the keys in the last line again, with the next drawing."""
        self.keys.note.end()

    # drawing

    def _draw(self, everything: bool) -> bool:
        """Draw the panels that are due: lanes always, table and heat map when a column ends, numbers at a reader's pace.

        Whether numbers were among them.
        """
        if not self._is_possible:
            return False
        self._wake_later()
        with self._context.session.lock:
            numbers = self._numbers_due(everything)
            if numbers:
                story = self.lanes.find_story()
                self.gpus.find_rows(story)
                self.lanes.find_lanes(story)
            rows_are_new = self._read_rows()
            places, stood = self._places, self.canvas.rows() if self.canvas.is_whole else None
            is_laid_out_anew = self._arrange()
            if is_laid_out_anew:
                everything, numbers = True, self._numbers_due(everything=True)
            moving = {name for name, place in self._places.items() if place != places[name]}
            self._follow_axis()
            if is_laid_out_anew and stood is not None:
                moving = set(places)
                self._screen.paint_layout = partial(self._paint_layout, stood, self._moved)
            due: list[Panel] = [self.table] if everything or rows_are_new or self._moved > 0 else []
            if self.gpus.heat is not None and self._moved > 0 and not numbers:
                due.append(self.gpus)
            painter = self.canvas.painter
            # What moves is painted in its new place, once that is known.
            shown = [(panel, panel.name in moving) for panel in (self.lanes, *due, *numbers)]
            sent = [self._show(panel, None if moves else painter, moves) for panel, moves in shown]
        self.canvas.send("".join(sent))
        return bool(numbers)

    def _paint_layout(self, stood: Sequence[Row], moved: int) -> bool:
        """Called once Textual has laid out: paint what stands elsewhere, or otherwise, now; False if only Textual can."""
        at = [(panel.name, panel.widget.region.y, panel.widget.region.height) for panel in self.panels if panel.rows]
        return at == [(name, *place) for name, place in self._places.items() if place[1]] and self.canvas.rearrange(stood, moved)

    @property
    def _is_possible(self) -> bool:
        return self._context.view.width > 0 and self._screen.is_mounted

    def _numbers_due(self, everything: bool) -> list[Panel]:
        now_s = time.monotonic()
        if not everything and now_s - self._numbers_drawn_s < NUMBERS_EVERY_S:
            return []
        self._numbers_drawn_s = now_s
        self.lanes.numbers_ns = self._context.view.at_ns or self._context.session.now_ns
        return [panel for panel in self.panels if panel.has_numbers]

    @property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Name of each panel -> its first row on the screen, and how many it has."""
        rows = [(panel.name, getattr(self._heights, panel.name)) for panel in self.panels]
        return {name: (sum(before for _, before in rows[:i]), height) for i, (name, height) in enumerate(rows)}

    def _show(self, panel: Panel, painter: Painter | None, moves: bool) -> str:
        view = self._context.view
        if is_too_small(view.width, view.height):
            lines: Sequence[Line] = [[(fit(TOO_SMALL, view.width), "warn")]] if isinstance(panel, HeaderPanel) else []
        else:
            lines = panel.lines()
        edges = None
        if view.framed:
            lines, edges = frame.filled(panel.name, lines, panel.rows, view.width), frame.frame_of(panel.name, panel.edge)
        if view.ascii_only:
            lines = [ascii_line(line) for line in lines]
        panel.widget.take_frame(edges, view.ascii_only)
        lane_at = panel.lane_at and panel.lane_at + view.inset
        return panel.widget.show(lines, painter, lane_at, self._moved if lane_at else 0, moves)

    def _follow_axis(self) -> None:
        """Find out by how many columns the lanes move left with this drawing."""
        now = self._context.view.axis(self._context.session)
        same = self._axis is not None and (now.cell_ns, now.columns) == (self._axis.cell_ns, self._axis.columns)
        moved = now.last - self._axis.last if same and self._axis else 0
        self._moved = moved if 0 < moved < now.columns // 2 else 0
        self._axis = now

    def _arrange(self) -> bool:
        """Give each panel its rows; whether that changed anything."""
        view = self._context.view
        (lanes, tall), board = self.lanes.wanted, self._context.session.board
        mapped, scrub = heat.is_on(board, view), int(self.scrub is not None)
        heights = arrange(view.height, gpus.count(board), lanes, tall=tall, procs=self.table.wanted, scrub=scrub, mapped=mapped)
        if is_too_small(view.width, view.height):
            heights = Heights(header=1)
        elif self.guide:
            heights = replace(heights, guide=1, why=max(0, heights.why - 1), procs=heights.procs - (not heights.why))
        if heights == self._heights:
            return False
        self._heights = heights
        with self._screen.app.batch_update():  # not around each drawing: Textual looks for work of its own after it
            for panel in self.panels:
                panel.rows = getattr(heights, panel.name)
                panel.widget.display = panel.rows > 0
                panel.widget.styles.height = panel.rows
        return True

    def _read_rows(self) -> bool:
        """Read the table's rows: once a second while live, at once after a key; whether they are new."""
        now_s = time.monotonic()
        is_due = now_s - self._rows_read_s >= ROWS_EVERY_S and (self._context.view.end_ns is None or not self._rows_read_s)
        if is_due:
            self.table.find_rows()
            self._rows_read_s = now_s
        return is_due
