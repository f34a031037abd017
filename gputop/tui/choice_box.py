"""Boxes in which columns of the table, and lanes, are chosen by hand: what is chosen is kept for the next screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from textual.binding import Binding

from gputop.model.fields import FIELDS
from gputop.system.text import cut
from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.draw import Line
from gputop.tui.draw.lanes import all_lanes, shown_lanes
from gputop.tui.draw.table import ALWAYS, TITLES, columns_of, help_of
from gputop.tui.feed import Context

TITLE_WIDTH, NOTE_WIDTH = 15, 12  # columns of the widest title, and of the widest note with a blank


class Choice(Struct, frozen=True):
    """Something that can be shown or hidden."""

    id: str
    title: str
    about: str
    chosen: bool
    always: bool = False
    note: str = ""  # why it is not seen though it is chosen, or the other way round


class ChoiceScreen(Box):
    """A line with a tick for each thing that can be shown. Each change is seen at once, as far as the terminal has room."""

    REFRESH_S = 0.0
    BINDINGS = [
        Binding("space,enter", "choose", "show or hide"),
        Binding("a", "automatic", "automatic"),
        Binding("asterisk", "all", "all"),
    ]

    FOOTER = (
        ("space", "show or hide", "choose"), ("↑↓", "move", "scroll(1)"), ("a", "automatic", "automatic"), ("*", "all", "all"), CLOSE_KEY,
    )  # fmt: skip

    def __init__(self, context: Context, changed: Callable[[], None]) -> None:
        super().__init__(context)
        self.at = 0
        self._changed = changed

    def choices(self) -> list[Choice]:
        """What can be chosen, in the order of the screen; called while the session is locked."""
        raise NotImplementedError

    def take(self, ids: tuple[str, ...]) -> None:
        """Show these; none: what is shown is decided without the user."""
        raise NotImplementedError

    def lines(self) -> Sequence[Line]:
        out: list[Line] = []
        for number, one in enumerate(self.choices()):
            is_shown = one.chosen or one.always
            style, note = "selected" if number == self.at else "", "always" if one.always else one.note
            mark = f" [{'x' if is_shown else ' '}] {one.title:<{TITLE_WIDTH}}"
            about = cut(one.about, max(0, self.text_width - len(mark) - NOTE_WIDTH - 1))
            out.append([(mark, style), (f" {note:<{NOTE_WIDTH}}", "dim"), (about, "" if is_shown else "dim")])
        return out

    def action_scroll(self, rows: int) -> None:
        """Move to another line."""
        with self.session.lock:
            count = len(self.choices())
        self.at = min(count - 1, max(0, self.at + rows))
        self.refresh_text()
        self.page.scroll_to(y=max(0, self.at - self.text_height + 1), animate=False)

    def action_choose(self) -> None:
        """Show or hide it."""
        with self.session.lock:
            found = self.choices()
        here = found[min(self.at, len(found) - 1)]
        if not here.always:
            self._show(tuple(one.id for one in found if one.always or one.chosen != (one is here)))

    def action_automatic(self) -> None:
        self._show(())

    def action_all(self) -> None:
        with self.session.lock:
            found = self.choices()
        self._show(tuple(one.id for one in found))

    def _show(self, ids: tuple[str, ...]) -> None:
        self.take(ids)
        self._changed()
        self.refresh_text()


class ColumnsScreen(ChoiceScreen):
    """`F2`: the columns of the table."""

    TITLE = "columns of the table"
    NAME = ("F2", "columns")
    BINDINGS = [*ChoiceScreen.BINDINGS, Binding("f2", "dismiss", "close", show=False)]

    def choices(self) -> list[Choice]:
        shown = {column.title for column in columns_of(self.view)}
        chosen = set(self.view.columns) or shown
        notes = dict.fromkeys(chosen - shown, "no room")
        return [Choice(title, title, help_of(title), title in chosen, title in ALWAYS, notes.get(title, "")) for title in TITLES]

    def take(self, ids: tuple[str, ...]) -> None:
        self.view.columns = ids


class LanesScreen(ChoiceScreen):
    """`v`: the lanes. One line stands for those of all GPUs and trainers."""

    TITLE = "lanes: what happens decides (a), or you"
    NAME = ("v", "lanes")
    BINDINGS = [*ChoiceScreen.BINDINGS, Binding("v", "dismiss", "close", show=False)]

    def choices(self) -> list[Choice]:
        view, known = self.view, self.session.history.series
        found = all_lanes(self.session, view)
        chosen = set(view.lanes) or {lane.key[0] for lane in shown_lanes(self.session, view)[0]}
        always = {lane.key[0] for lane in found if lane.always}
        read = {field for field, _ in known}
        return [
            Choice(name, FIELDS[name].title, FIELDS[name].help or FIELDS[name].source, name in chosen, name in always,
                   "" if name in read else "no readings")
            for name in dict.fromkeys(lane.key[0] for lane in found)
        ]  # fmt: skip

    def take(self, ids: tuple[str, ...]) -> None:
        self.view.lanes = ids
