"""The box in which the table's columns are chosen: what is chosen is kept for the next screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.binding import Binding

from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.draw import Line
from gputop.tui.draw.table import ALWAYS, TITLES, columns_of, help_of
from gputop.tui.feed import Context


class ColumnsScreen(Box):
    """`F2`: the columns of the table. Each change is seen at once, as far as the terminal has room."""

    TITLE = "columns of the table   (↑↓ moves, space shows or hides, a: as the width allows, Esc closes)"
    REFRESH_S = 0.0
    BINDINGS = [
        Binding("f2", "dismiss", "close", show=False),
        Binding("space,enter", "choose", "show or hide"),
        Binding("a", "automatic", "as the width allows"),
    ]

    FOOTER = (("space", "show or hide", "choose"), ("a", "as the width allows", "automatic"), CLOSE_KEY)

    def __init__(self, context: Context, changed: Callable[[], None]) -> None:
        super().__init__(context)
        self.at = 0
        self._changed = changed

    def lines(self) -> Sequence[Line]:
        """A line for each column, in the table's order."""
        shown = {column.title for column in columns_of(self.view)}
        chosen = set(self.view.columns) or shown
        out: list[Line] = []
        for number, title in enumerate(TITLES):
            mark = "x" if title in ALWAYS or title in chosen else " "
            note = "always" if title in ALWAYS else "no room" if title in chosen and title not in shown else ""
            style = "selected" if number == self.at else ""
            out.append([(f" [{mark}] {title:<8}", style), (f" {help_of(title)}", "" if mark == "x" else "dim"), (f"  {note}", "dim")])
        return out

    def action_scroll(self, rows: int) -> None:
        """Move to another column."""
        self.at = min(len(TITLES) - 1, max(0, self.at + rows))
        self.refresh_text()
        self.page.scroll_to(y=max(0, self.at - self.text_height + 1), animate=False)

    def action_choose(self) -> None:
        """Show or hide the column."""
        title = TITLES[self.at]
        if title in ALWAYS:
            return
        chosen = set(self.view.columns or (column.title for column in columns_of(self.view))) ^ {title}
        self._take(tuple(one for one in TITLES if one in chosen))

    def action_automatic(self) -> None:
        self._take(())

    def _take(self, titles: tuple[str, ...]) -> None:
        self.view.columns = titles
        self._changed()
        self.refresh_text()
