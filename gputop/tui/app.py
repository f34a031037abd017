"""The application: themes, signals, the feed, and the screens over it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from textual._ansi_sequences import SYNC_END, SYNC_START
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.command import CommandPalette
from textual.dom import DOMNode
from textual.events import Event
from textual.filter import NoColor
from textual.screen import Screen

from gputop.model.frame import SECOND_NS
from gputop.session.autostacks import AutoCapture, AutoStacks
from gputop.session.session import Session
from gputop.system.priority import WATCHERS_PLACE
from gputop.tui.draw import header
from gputop.tui.driver import TerminalDriver
from gputop.tui.feed import Feed, Stream
from gputop.tui.keymap import keys_of, taken_twice, unknown
from gputop.tui.palette import Ascii, themes
from gputop.tui.screens.help import key_name
from gputop.tui.screens.main import MainScreen
from gputop.tui.typed import Typed
from gputop.tui.view import View

if TYPE_CHECKING:
    from gputop.diagnosis import Incident, Ledger
    from gputop.session.survey import Episode

_NOT_OURS = ("Keys", "Maximize", "Minimize")
"""Textual's own help would hide the dashboard's; the dashboard's parts are no widgets to look at one by one."""


class Look(Struct):
    """How the screen should look."""

    theme: str = "gputop-dark"
    mouse: bool = True
    remote: bool = False
    """The stream comes from another machine, or from the past."""
    auto_stacks: bool = True
    """Take one set of stacks as an incident begins."""


class GputopApp(App[int]):
    """One session on one screen, live or replayed."""

    CSS_PATH = "app.tcss"
    TITLE = "gputop"
    ENABLE_COMMAND_PALETTE = True
    DASHBOARD: ClassVar[type[MainScreen]] = MainScreen
    BINDINGS = [
        Binding("q", "quit", "quit", id="quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "suspend", show=False, priority=True),
    ]

    def __init__(self, session: Session, view: View, start: Callable[[], Stream] | None, first: Stream, look: Look) -> None:
        super().__init__(driver_class=TerminalDriver, watch_css=False)
        if self.no_color:
            # Textual's own answer to NO_COLOR are shades of grey, of which black on black is one.
            self._filters = [NoColor()]
        if view.ascii_only:
            self._filters.append(Ascii())
        self.session = session
        self.view = view
        self.look = look
        self.feed = Feed(session, start, first, self._on_first_frame)
        self.typed = Typed(self)
        self._auto = AutoCapture(AutoStacks(), session.add_stacks)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_failing = False
        self._unfinished = ExitStack()
        """While the first screen is being laid out, which takes Textual several rounds: only the last is worth a line to send."""
        for theme in themes():
            self.register_theme(theme)
        self.theme = look.theme

    def get_default_screen(self) -> MainScreen:
        """The dashboard."""
        return self.DASHBOARD()

    async def on_event(self, event: Event) -> None:
        """Keys one after the other."""
        if not self.typed.holds(event):
            await super().on_event(event)

    async def _dispatch_action(self, namespace: DOMNode, action_name: str, params: Any) -> bool:
        """As Textual does it; a page of its palette's list that is not laid out yet is an error there, and nothing here."""
        try:
            return await super()._dispatch_action(namespace, action_name, params)
        except KeyError:
            if not isinstance(namespace, CommandPalette):
                raise
            return True

    def on_load(self) -> None:
        """Handle the signals that end a program, before the terminal is changed: each way out gives it back."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT):
            self._loop.add_signal_handler(number, self.exit, 0)

    def on_mount(self) -> None:
        """Paint anew when we are in the foreground again, and begin to read."""
        self._unfinished.enter_context(self.batch_update())
        self.app_resume_signal.subscribe(self, lambda _: self.refresh())
        self.feed.start()

    def on_ready(self) -> None:
        """The first round of layout is done, what it asks for is under way: show what comes of that."""
        self.screen.call_later(self._show_first)

    def _show_first(self) -> None:
        self._unfinished.close()
        self.screen.refresh(layout=True)

    def on_news(self) -> None:
        """Called in the feed's thread when all that came was taken in: take the stacks that are due, and draw."""
        if self.look.auto_stacks and not self.look.remote:
            with self.session.lock:
                self._auto.step(self.session.board, self.session.engine)
        self._soon(MainScreen.draw_live)

    def _on_first_frame(self) -> None:
        """Called in the feed's thread: draw as soon as there is something to draw."""
        self._soon(MainScreen.draw_all)

    def _soon(self, draw: Callable[[MainScreen], None]) -> None:
        if self._loop is not None and isinstance(screen := self.screen_stack[0] if self.screen_stack else None, MainScreen):
            try:
                self._loop.call_soon_threadsafe(draw, screen)
            except RuntimeError:
                pass  # the loop has just been closed: we are leaving

    @property
    def is_behind(self) -> bool:
        """True while the terminal has not taken what was already sent: drawing more would only pile up."""
        return isinstance(self._driver, TerminalDriver) and self._driver.backlog > 0

    @property
    def paints_itself(self) -> bool:
        """Whether `send` reaches a terminal whose colours need no conversion (see `gputop.tui.painter`)."""
        return isinstance(self._driver, TerminalDriver) and self.native_ansi_color

    def send(self, text: str) -> None:
        """Write to the terminal past the compositor, as one update where the terminal knows those."""
        if self._driver is not None:
            self._driver.write(f"{SYNC_START}{text}{SYNC_END}" if self._sync_available else text)

    def happened(self, t_ns: int | None) -> tuple[Ledger, Sequence[Incident | Episode]]:
        """What was lost and what had happened by a moment (None is now); the session is locked meanwhile."""
        incidents = self.session.engine.incidents
        return self.session.ledger_at(t_ns), [incident for incident in incidents if t_ns is None or incident.start_ns <= t_ns]

    @property
    def is_remote(self) -> bool:
        """True where the processes on screen are not this machine's, now."""
        return self.look.remote

    def use_keys(self, mapped: dict[str, str]) -> str:
        """Take the user's keys instead of ours, those of the other dashboard too; what is wrong with them, empty where nothing is."""
        if not mapped:
            return ""
        from gputop.tui.screens.replay import ReplayScreen

        wrong = unknown([*self.BINDINGS, *MainScreen.BINDINGS, *ReplayScreen.BINDINGS], mapped)
        wrong = wrong or taken_twice([*self.BINDINGS, *self.DASHBOARD.BINDINGS], mapped)
        if not wrong:
            self.set_keymap(mapped)
        return wrong

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Every action of the dashboard by its name, then those of Textual's own that make sense here."""
        if isinstance(screen, MainScreen):
            for binding in screen.BINDINGS:
                if isinstance(binding, Binding):
                    title = binding.description[:1].upper() + binding.description[1:]
                    keys = " or ".join(map(key_name, keys_of(self._keymap.get(binding.id or "") or binding.key)))
                    yield SystemCommand(title, f"key {keys}", partial(screen.run_action, binding.action))
        yield from (command for command in super().get_system_commands(screen) if command.title not in _NOT_OURS)

    def _handle_exception(self, error: Exception) -> None:
        """Leave, for a bug: it is kept for a bug report, and said in a line once the terminal is the user's again."""
        from gputop.system import crash

        if not self._is_failing:
            self._is_failing = True
            crash.end_with(error)
            self._return_code = 1
            self._exception = self._exception or error  # a pilot raises it
            self._exception_event.set()
            self._close_messages_no_wait()

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Called with what a callback of the event loop raised, such as a drawing that the feed has asked for."""
        if isinstance(error := context.get("exception"), Exception):
            self._handle_exception(error)

    async def action_quit(self) -> None:
        """Leave."""
        self.exit(0)

    def on_unmount(self) -> None:
        """Stop the collector with the screen."""
        self.feed.close()


def own_cost(session: Session, started: tuple[float, float]) -> str:
    """What screen and collector cost together, for the header; empty in a collector's first second, which is all start."""
    cost = session.board.cost
    wall, cpu = time.monotonic() - started[0], time.process_time() - started[1]
    if cost is None or session.header is None or wall <= 0 or session.now_ns - session.header.t_ns < SECOND_NS:
        return ""
    collected = cost.cpu_ns / (session.now_ns - session.header.t_ns)
    own = f"self {100 * (cpu / wall + collected):.1f}% CPU {cost.rss_bytes >> 20}+{_rss_mb()} MB"
    return f"{own}, priority given up" if header.beat_yields(session.board) or WATCHERS_PLACE.reason else own


def _rss_mb() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
