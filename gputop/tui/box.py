"""Boxes over the dashboard: text that scrolls, and two questions: whether to signal processes, which moment to go to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gputop.system import crash
from gputop.system.errors import UserError, starting
from gputop.system.text import even, fit
from gputop.tui.colours import colours_of
from gputop.tui.draw import TOO_SMALL, Line, edges, folded, is_too_small, safe_line, time_of_day
from gputop.tui.feed import Context
from gputop.tui.terminal import LoneScreen
from gputop.tui.widgets import Scrolled

if TYPE_CHECKING:
    from gputop.recording.reader import Recording

Found = TypeVar("Found")
CLOSE_KEY: edges.Key = ("Esc", "close", "dismiss")
SCROLLING = [
    Binding("down,j", "scroll(1)", "down", show=False),
    Binding("up,k", "scroll(-1)", "up", show=False),
    Binding("pagedown,space", "scroll(20)", "page down", show=False),
    Binding("pageup", "scroll(-20)", "page up", show=False),
]


class Box(LoneScreen):
    """A title, and `lines`, which are asked for again every `REFRESH_S` seconds (0: never). Esc, q or the key that opened it closes it."""

    BINDINGS = [Binding("escape,q", "dismiss", "close"), *SCROLLING]
    TITLE = ""
    NAME = ("", "")  # in its frame: the key that opens it, and what it is
    FOOTER: Sequence[edges.Key] = (CLOSE_KEY,)  # keys in the last line of the screen while the box is open, by worth
    REFRESH_S = 1.0
    TAKES_ALL = False  # whether the box is as large as it may be, whatever it holds: what comes and folds must not make it jump

    def __init__(self, context: Context) -> None:
        self.page = Scrolled(classes="box")
        if self.NAME[0]:
            self.page.border_title = Content.assemble((self.NAME[0], "bold"), f" {self.NAME[1]}")
        super().__init__(self.page)
        self.context, self.session, self.view = context, context.session, context.view
        self.show_keys: Callable[[Sequence[edges.Key]], None] = lambda _: None  # names keys in the last line; whoever opens the box sets it
        self._made_for = Size(0, 0)  # the terminal's size that the text was last made for

    def compose(self) -> ComposeResult:
        """One widget, at once in its final size: each further widget or layout would take milliseconds."""
        self.begin_to_open()
        self.refresh_text()
        yield self.page

    def on_mount(self) -> None:
        """Keep the text fresh."""
        self.call_after_refresh(self.end_opening)
        if self.REFRESH_S:
            self.set_interval(self.REFRESH_S, self.refresh_text)

    def on_resize(self) -> None:
        """Make the text again if the terminal's size has changed; Textual also calls this when the box opens."""
        if self._made_for != self.app.size:
            self.view.resize(*self.app.size)  # the dashboard learns it later
            self.refresh_text()

    def open_over(self, box: Box) -> None:
        """Open another box over this one; the last line of the screen has its keys until it is closed."""
        box.show_keys = self.show_keys
        self.show_keys(box.FOOTER)
        self.app.push_screen(box, lambda _: self.show_keys(self.FOOTER))

    def take_keys(self, keys: Sequence[edges.Key]) -> None:
        """Name these keys in the last line of the screen from now on."""
        if keys != self.FOOTER:
            self.FOOTER = keys
            self.show_keys(keys)

    def refresh_text(self) -> None:
        """Ask for the text again."""
        self._made_for, width = self.app.size, self.text_width
        lines = [row for line in self.content() for row in folded(safe_line(line), width)]
        head = [row for line in self.first_line.split("\n") for row in folded(safe_line([(line, "title")]), width)]
        if is_too_small(*self.app.size):
            head, lines = [[(fit(TOO_SMALL, self.app.size.width), "warn")]], []
        self.page.set_class(is_too_small(*self.app.size), "-too-small")
        self.fit([*head, *lines], len(head))
        self.page.show(head, lines, colours_of(self.app))

    @property
    def first_line(self) -> str:
        """The first line, or lines, which do not scroll."""
        return self.title or self.TITLE

    def content(self) -> Sequence[Line]:
        """Lines to show."""
        with self.session.lock:
            return self.lines()

    def lines(self) -> Sequence[Line]:
        """Lines to show; called while the session is locked."""
        raise NotImplementedError

    def fit(self, lines: Sequence[Line], head: int) -> None:
        """Make the box as high as its text needs and the terminal allows; ``head`` of the lines do not scroll."""
        rows = len(lines) - head
        if self.TAKES_ALL:
            self.page.take_room(self.text_height + 1, rows >= self.text_height)
        else:
            self.page.take_room(min(rows, self.text_height) + head, rows > self.text_height)

    @property
    def text_width(self) -> int:
        """Columns of a line, without border, padding and scroll bar. A box is as wide as the terminal: next to a narrower one words would
        be torn."""
        return max(1, self.app.size.width - 5)

    @property
    def text_height(self) -> int:
        """Rows that are seen without scrolling."""
        return max(1, self.app.size.height * 96 // 100 - 4)

    def work(self, job: Callable[[], Iterable[Found]], show: Callable[[Found], None], fail: Callable[[str], None]) -> bool:
        """Do a job in a thread, so that the screen never waits for a process; whether the thread could be started.

        ``show`` gets each thing that the job finds, ``fail`` the reason why it failed, both in the screen's thread.
        """
        try:
            with starting():
                Thread(target=self._work, args=(job, show, fail), daemon=True, name=type(self).__name__).start()
        except UserError as error:
            fail(str(error))
            return False
        return True

    def tell(self, call: Callable[..., None], what: object) -> bool:
        """Call something in the screen's thread, from another one; False if the screen has ended."""
        try:
            return self.call_later(call, what)
        except RuntimeError:  # the loop has just been closed: gputop ends
            return False

    def _work(self, job: Callable[[], Iterable[Found]], show: Callable[[Found], None], fail: Callable[[str], None]) -> None:
        try:
            for found in job():
                if not self.tell(show, found):
                    return
        except Exception as error:  # noqa: BLE001 - the box shows it; a thread's own traceback would tear the screen
            self.tell(fail, crash.reason(error))

    def action_scroll(self, rows: int) -> None:
        self.page.scroll_rows(rows)

    async def on_click(self, event: events.Click) -> None:
        """Press the key that is named under the mouse in the last line of the screen, or in brackets in the box."""
        if offset := event.get_content_offset(self.page):
            bracketed = [(f"[{key}]", word, action) for key, word, action in self.FOOTER]
            pressed = edges.action_at(f" {self.page.line_text(offset.y)}", offset.x + 1, bracketed)
        elif event.screen_y == self.app.size.height - 1 and not self.page.region.contains(event.screen_x, event.screen_y):
            (line,) = edges.key_lines(self.view, "", self.FOOTER)
            pressed = edges.action_at("".join(text for text, _ in line), event.screen_x, self.FOOTER)
        else:
            return
        if pressed:
            await self.run_action(pressed)


class ConfirmScreen(ModalScreen[bool]):
    """Yes or no, and all that it is about, which scrolls. Enter and Esc are no, every other key is no answer."""

    BINDINGS = [Binding("y", "answer(True)", "yes"), Binding("n,escape,q,enter", "answer(False)", "no"), *SCROLLING]

    def __init__(self, question: str, names: Sequence[str]) -> None:
        super().__init__()
        self.question = question
        self.names = names
        self.seen_s = math.inf  # since when it is on screen (time.monotonic)
        self.page = Scrolled(classes="box")

    def compose(self) -> ComposeResult:
        """The question and how to answer it, which do not scroll, and the processes it is about."""
        self.refresh_text()
        yield self.page

    def refresh_text(self) -> None:
        """Make the lines for the terminal's size."""
        width, most = max(1, self.app.size.width - 5), max(1, self.app.size.height * 96 // 100 - 4)
        lines = [row for name in self.names for row in folded(safe_line([(f"  {even(name)}", "")]), width)]
        for is_long in (False, True):
            keys = f"[y] yes   [n] no (Enter){'   ↓↑ PgDn PgUp: all ' + str(len(self.names)) + ' lines' if is_long else ''}"
            head = [row for text in (self.question, keys) for row in folded(safe_line([(text, "title")]), width)] + [[]]
            if len(head) + len(lines) <= most + 1:
                break
        self.page.take_room(min(len(head) + len(lines), most + 1), len(head) + len(lines) > most + 1)
        self.page.show(head, lines, colours_of(self.app))

    def on_mount(self) -> None:
        """Take answers from when it is drawn."""
        self.call_after_refresh(self._mark_seen)

    def on_resize(self) -> None:
        """Fold the lines again."""
        self.refresh_text()

    def _mark_seen(self) -> None:
        self.seen_s = time.monotonic()

    def on_key(self, event: events.Key) -> None:
        """Drop keys that were typed before the question was on screen."""
        if event.time < self.seen_s:
            event.stop()

    def action_answer(self, answer: bool) -> None:
        """Give the answer; a question that is too small to read is never answered with yes."""
        self.dismiss(answer and not is_too_small(*self.app.size))

    def action_scroll(self, rows: int) -> None:
        self.page.scroll_rows(rows)


class MomentScreen(ModalScreen[int | None]):
    """Gives the moment that was asked for (CLOCK_MONOTONIC ns), None for Esc."""

    BINDINGS = [Binding("escape", "dismiss(None)", "close")]

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def compose(self) -> ComposeResult:
        """The times there are, and the line to type in."""
        known = self._recording
        start, end = (time_of_day(known.header.unix_ns_of(t_ns) / 1e9) for t_ns in (known.start_ns, known.end_ns))
        with Vertical(classes="box"):
            yield Static(Text(f"go to   {start} … {end}", style="bold"))
            yield Input(placeholder="14:03:07, 90s, 50% or a marker", id="moment", compact=True)
            yield Static(id="wrong")

    @on(Input.Submitted)
    def answer(self, event: Input.Submitted) -> None:
        """Close with the moment, or show why the text names none."""
        from gputop.stream.moment import moment_within

        try:
            self.dismiss(moment_within(event.value, self._recording))
        except UserError as error:
            self.query_one("#wrong", Static).update(Text(str(error), style="bold"))
