"""What keys and mouse do to the process table: select, sort, filter, fold."""

from __future__ import annotations

from textual import events, on
from textual.widgets import Input

from gputop.tui import navigate
from gputop.tui.draw import gpus, keys, procs, verdict
from gputop.tui.draw.rows import SORTS
from gputop.tui.draw.search import no_expression
from gputop.tui.screens.dashboard import Dashboard
from gputop.tui.widgets.drawn import Drawn

SORT_KEYS = {
    "n": "natural", "u": "user", "p": "pid", "g": "gpu-mem", "s": "sm", "b": "bandwidth", "c": "cpu", "m": "mem", "t": "time",
    "r": "runq", "w": "switches",
}  # fmt: skip
"""The letter after ``o``, as in nvitop; a capital letter reverses."""
_BRIEF = {"bandwidth": "bw", "switches": "sw"}
"""What the prompt calls them: all must fit in 80 columns."""


class TableActions(Dashboard):
    """The dashboard with a table that can be worked in."""

    _sort_pending = False

    def action_move(self, rows: int) -> None:
        """Select another process."""
        at = self.selected_row()
        if self.rows:
            begin = at if at is not None else -1 if rows > 0 else len(self.rows)
            self.view.selected = self.rows[min(len(self.rows) - 1, max(0, begin + rows))].pid
        self.redraw()

    def action_sort(self) -> None:
        """Wait for the letter of a column."""
        self._sort_pending = True
        letters = " ".join(f"{key} {_BRIEF.get(name, name)}" for key, name in SORT_KEYS.items())
        self.note(f"sort {letters}{'  (capital: reversed)' if self.view.width >= 102 else ''}")

    def on_key(self, event: events.Key) -> None:
        """The letter after ``o``. Any key takes away what was said of the one before it."""
        self.end_note()
        if not self._sort_pending:
            return
        self._sort_pending = False
        letter = event.character or ""
        if letter.lower() in SORT_KEYS:
            event.stop()
            event.prevent_default()
            self._sort_by(SORT_KEYS[letter.lower()], letter.isupper())

    def _sort_by(self, order: str, reverse: bool) -> None:
        self.view.sort, self.view.reverse = order, reverse
        self.note(f"sorted by {SORTS[order][0]}{', reversed' if reverse else ''}")
        self.redraw()

    def action_sort_step(self, step: int) -> None:
        """The next sort column."""
        names = list(SORTS)
        self.view.sort = names[(names.index(self.view.sort) + step) % len(names)]
        self.redraw()

    def action_reverse(self) -> None:
        """Turn the order round."""
        self.view.reverse = not self.view.reverse
        self.redraw()

    def action_tree(self) -> None:
        """Families together, or everyone by rank."""
        self.view.tree = not self.view.tree
        self.note("families together" if self.view.tree else "a flat list")
        self.redraw()

    def action_bystanders(self) -> None:
        """Show or hide who is not of the training."""
        self.view.bystanders = not self.view.bystanders
        self.redraw()

    def action_gpu(self, step: int) -> None:
        """Choose the GPU that gets the room."""
        with self.session.lock:
            indices = sorted(self.session.board.gpus)
        if indices:
            at = indices.index(self.view.gpu) if self.view.gpu in indices else 0
            self.view.gpu = indices[(at + step) % len(indices)]
        self.redraw()

    def action_clear(self) -> None:
        """Nothing selected, nothing filtered, and back to now when there was neither."""
        view = self.view
        if self.query_one("#filter", Input).has_class("-open"):
            self.close_filter()
        elif view.selected is None and not view.pattern:
            navigate.follow(view)
        view.selected, view.pattern, view.tagged = None, "", set()
        self.redraw()

    def action_filter(self) -> None:
        """Open the filter's line."""
        line = self.query_one("#filter", Input)
        line.disabled = False
        line.add_class("-open")
        line.value = self.view.pattern
        line.focus()

    @on(Input.Changed, "#filter")
    def filter_while_typing(self, event: Input.Changed) -> None:
        """Filter with every letter."""
        if event.input.has_class("-open"):
            self.view.pattern = event.value
            self.redraw()

    @on(Input.Submitted, "#filter")
    def close_filter(self) -> None:
        """Keep the filter and give the keys back."""
        line = self.query_one("#filter", Input)
        line.remove_class("-open")
        line.disabled = True
        self.set_focus(None)
        pattern = self.view.pattern
        if pattern.startswith("!") and (problem := no_expression(pattern[1:])):
            self.note(f"{pattern[1:]} is no regular expression to search with, so nobody is hidden: {problem}")
        self.redraw()

    async def on_click(self, event: events.Click) -> None:
        """A process is selected, a column of the charts looked at, a key that is named pressed, a title sorted by."""
        part = event.widget
        if not isinstance(part, Drawn):
            return
        if part.id in ("keys", "verdict"):
            await self._press(keys.action_at(part.line_text(event.y), event.x, self.KEYS if part.id == "keys" else verdict.KEYS))
        elif part.id == "procs" and event.y == 0 and (order := procs.order_at(self.view, event.x)):
            self._sort_by(order, self.view.sort == order and not self.view.reverse)
        elif part.id == "procs" and 0 < event.y <= len(self.rows) - self.view.top_row:
            self.view.selected = self.rows[self.view.top_row + event.y - 1].pid
            if event.chain == 2:
                await self.run_action("details")
            self.redraw()
        elif part.id == "lanes" and event.x >= self.view.label_width:
            with self.session.lock:
                axis = navigate.axis_of(self.view, self.session)
                navigate.go_to(self.view, self.session, axis.time_of(event.x - self.view.label_width))
            self.redraw()
        elif part.id == "gpus" and event.y > 0:
            with self.session.lock:
                there = gpus.entries(self.session.board, self.view, part.size.height)[event.y - 1 : event.y]
            if there:
                self.view.gpu = there[0][0].index
                self.redraw()

    async def _press(self, action: str | None) -> None:
        if action is not None:
            await self.run_action(action)

    def on_mouse_scroll_down(self) -> None:
        """Down the table."""
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        """Up the table."""
        self.action_move(-1)
