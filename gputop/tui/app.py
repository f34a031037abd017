"""The application: themes, signals, the feed, and the screens over it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import SystemCommand
from textual.binding import Binding
from textual.command import CommandInput, CommandPalette
from textual.dom import DOMNode
from textual.filter import LineFilter, NoColor
from textual.screen import Screen
from textual.scrollbar import ScrollBar

from gputop.stream.autotrace import AutoTracing, own_folder
from gputop.stream.following import Following
from gputop.stream.stalled import AutoCapture, AutoStacks
from gputop.tui import bindings
from gputop.tui.box import ConfirmScreen
from gputop.tui.colours import default_theme, themes
from gputop.tui.dashboard import DashboardScreen, LineScreen
from gputop.tui.feed import Context
from gputop.tui.terminal import LoneScreen, TerminalApp, parse_styles, send
from gputop.tui.widgets import AsciiFilter, Scrolled

PREPARE_S = 2.0  # s after the first screen until what the first keys need is prepared: the start is over (a choice)
_LEFT_OUT = ("Keys", "Maximize", "Minimize")  # Textual's commands that are not offered: the dashboard has help and `z` of its own


class GputopApp(TerminalApp):
    """One stream on one screen, live or replayed."""

    CSS = Path(__file__).with_name("app.tcss").read_text(encoding="utf-8")  # now: once root is left it may not be readable
    TITLE = "gputop"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS = [*bindings.EVERYWHERE]

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self._auto_stacks = AutoCapture(
            AutoStacks(), context.session.add_stacks, context.session.add_mark, dumps=not context.view.readonly
        )  # fmt: skip
        self._auto_trace = AutoTracing(context.session.add_traces, own_folder)
        self.tell_alerts: Callable[[Following], None] | None = None  # called in the feed's thread, under the session's lock
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._theme_before = ""  # the theme that Escape goes back to while one is searched for
        self._unfinished = ExitStack()
        """Holds drawing back while the first screen is laid out, in several rounds: only the last one is worth sending."""
        for theme in themes():
            self.register_theme(theme)
        self.theme = context.look.theme if context.look.theme in self.available_themes else default_theme()

    def get_default_screen(self) -> DashboardScreen:
        if self.context.replay is None:
            return DashboardScreen(self.context)
        from gputop.tui.replay_screen import ReplayScreen

        return ReplayScreen(self.context)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Filters for what Textual draws: no colour for NO_COLOR (Textual's greys have black on black), ASCII if asked for."""
        filters = [NoColor()] if self.no_color else super().get_line_filters()
        return [*filters, AsciiFilter()] if self.context.view.ascii_only else filters

    async def run_action(
        self, action: Any, default_namespace: DOMNode | None = None, namespaces: Mapping[str, DOMNode] | None = None
    ) -> bool:
        """Do an action; Textual's palette raises KeyError for a page of its list that is not laid out yet, which is nothing here."""
        if self.context.look.guide is not None and isinstance(action, str):
            self.context.look.guide.did(action)
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except KeyError:
            if not isinstance(self.screen, CommandPalette):
                raise
            return True

    def on_load(self) -> None:
        """Handle the signals that end a program before the terminal is changed: each way out gives it back."""
        self._event_loop = asyncio.get_running_loop()
        self._event_loop.set_exception_handler(self._on_loop_error)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT):
            self._event_loop.add_signal_handler(number, self.exit, 0)

    def on_mount(self) -> None:
        """Begin to read; paint everything again whenever gputop comes to the foreground."""
        self._unfinished.enter_context(self.batch_update())
        self.app_resume_signal.subscribe(self, lambda _: self.refresh())
        self.context.feed.start(self._on_first_frame)

    def on_ready(self) -> None:
        """Show the first screen, after the first round of layout and what it asks for."""
        self.screen.call_later(self._show_first)
        self.set_timer(PREPARE_S, self._prepare)

    def _show_first(self) -> None:
        self._unfinished.close()
        self.screen.refresh(layout=True)
        if self.context.look.note and isinstance(self.screen, DashboardScreen):
            self.screen.drawing.show_note(self.context.look.note)

    def on_news(self) -> None:
        """Called in the feed's thread when all that came was taken in: take the stacks that are due, and draw."""
        context = self.context
        if self.tell_alerts is not None:
            with context.session.lock:
                self.tell_alerts(context.session.following)
        if context.look.guide is not None:
            with context.session.lock:
                applied = None if context.fixing is None else context.fixing.applied
                context.look.guide_line = context.look.guide.line(context.session, applied, self._over())
        if context.look.auto_stacks and not context.look.remote:
            with context.session.lock:
                self._auto_stacks.step(context.session.board, context.session.engine)
        if context.look.auto_trace and not context.look.remote:
            with context.session.lock:
                self._auto_trace.step(context.session.board, context.session.engine)
        self._draw_soon(lambda screen: screen.draw_news())

    def _prepare(self) -> None:
        """Do what the first box and the first stacks would do: each takes more ms than a key may."""
        from gputop.tui import stacks_box  # noqa: F401

        page = Scrolled()
        parse_styles(self, (page, LoneScreen(page), ScrollBar()))

    def _over(self) -> str:
        top = self.screen_stack[-1] if len(self.screen_stack) > 1 else None
        return "" if top is None else "question" if isinstance(top, ConfirmScreen) else "box"

    def send_sequence(self, text: str) -> None:
        """Write a sequence that draws nothing, between two drawings; from any thread."""
        send(self, text)

    def _on_first_frame(self) -> None:
        """Called in the feed's thread: draw as soon as there is something to draw."""
        self._draw_soon(lambda screen: screen.drawing.draw_all())

    def _draw_soon(self, draw: Callable[[DashboardScreen], None]) -> None:
        screen = self.screen_stack[0] if self._event_loop is not None and self.screen_stack else None
        if self._event_loop is not None and isinstance(screen, DashboardScreen):
            try:
                self._event_loop.call_soon_threadsafe(draw, screen)
            except RuntimeError:
                pass  # the loop has just been closed: gputop ends

    @property
    def key_lists(self) -> list[Sequence[Binding]]:
        """The keys of each screen that can be shown."""
        return [bindings.LIVE if self.context.replay is None else bindings.REPLAY]

    def use_keys(self, mapped: dict[str, str]) -> str:
        """Use the user's keys (action -> keys) instead of the defaults. Returns what is wrong with them in a sentence, or an empty string.

        Keys of a replay are allowed on a live screen, where they do nothing, and the other way round.
        """
        if not mapped:
            return ""
        wrong = next(filter(None, (bindings.wrong_keys(mapped, ours) for ours in self.key_lists)), "")
        if not wrong:
            self.context.look.keys = mapped
            self.set_keymap(mapped)
        return wrong

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Commands of the palette: every action of the screen by its name, then Textual's own that make sense here."""
        if isinstance(screen, LineScreen):
            for binding in screen.KEYS:
                title = binding.description[:1].upper() + binding.description[1:]
                keys = " or ".join(map(bindings.key_name, bindings.keys_of(binding, self.context.look.keys)))
                yield SystemCommand(title, f"key {keys}", partial(screen.run_action, binding.action))
        yield from (command for command in super().get_system_commands(screen) if command.title not in _LEFT_OUT)

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Called with what a callback of the event loop raised, such as a drawing that the feed asked for."""
        if isinstance(error := context.get("exception"), Exception):
            self.fail(error)

    # the themes: what the search for one is on is shown

    @property
    def chosen_theme(self) -> str:
        """The theme that was chosen; empty if it is the one of this terminal anyway."""
        return "" if self.theme == default_theme() else self.theme

    def search_themes(self) -> None:
        """Open the search, and remember the theme that stands while it is open."""
        self._theme_before = self.theme
        super().search_themes()

    def on_command_palette_option_highlighted(self, event: CommandPalette.OptionHighlighted) -> None:
        """Show the theme under the cursor; not the first of the list before anything was typed or moved over."""
        found = event.highlighted_event
        name, is_first = str(found.option.prompt), found.option_index == 0 and self.theme == self._theme_before
        if not self._theme_before or name not in self.available_themes or not isinstance(self.screen, CommandPalette):
            return
        if not is_first or self.screen.query_one(CommandInput).value:
            self.theme = name

    def on_command_palette_closed(self, event: CommandPalette.Closed) -> None:
        """Go back to the theme before, unless one was chosen."""
        if self._theme_before and not event.option_selected:
            self.theme = self._theme_before
        self._theme_before = ""

    async def action_quit(self) -> None:
        self.exit(0)

    def on_unmount(self) -> None:
        """Put an applied fix back, and stop the collector with the screen."""
        if self.context.fixing is not None:
            self.context.fixing.close()
        self.context.feed.close()
