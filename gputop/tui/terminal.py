"""Parts that gputop needs of Textual and Rich beyond their documented interface, each with the reason.

Private names change without notice. They are used with the Textual versions in `TRIED` alone; with any other one, or where
GPUTOP_TEXTUAL_ONLY is set, the screen works by Textual's own driver, compositor and error handling (`TEXTUAL_ONLY`). Then it sends
more to the terminal, and lacks what the classes here add.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import sys
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import TextIOWrapper
from queue import Full
from typing import IO, Any

import textual
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Event, InputEvent, Key, Paste, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.strip import Strip
from textual.widget import Widget

from gputop.system import crash, tty
from gputop.tui.input import PASTE, KeyQueue, Received
from gputop.tui.looks import RESET, compact

try:
    from textual._ansi_sequences import SYNC_END, SYNC_START
    from textual._xterm_parser import XTermParser
    from textual.drivers._writer_thread import WriterThread
except ImportError:  # a Textual that was not tried: nothing below uses them then
    SYNC_START = SYNC_END = ""
    XTermParser = WriterThread = object  # type: ignore[assignment,misc]

TRIED = ("8.2.8",)  # versions of Textual that were tried with these private names


def _is_tried() -> bool:
    """True if Textual's version, by the folder that pip made next to it, is one in `TRIED`. importlib.metadata would take 1.5 MB for
    that."""
    packages = os.path.dirname(os.path.dirname(textual.__file__))
    return any(os.path.isdir(f"{packages}/textual-{version}.dist-info") for version in TRIED)


TEXTUAL_ONLY = bool(os.environ.get("GPUTOP_TEXTUAL_ONLY")) or not _is_tried()

POLL_MS = 100  # ms between looks at a lone Esc, after a key
TYPING_TURNS = 10  # such looks after a key; then nothing is waited for but keys and the end
STUCK_S = 1.0  # s between looks whether the thread that writes is still there, while its queue is full
AWAKE_S = 0.2  # s until gputop stops again when it gets SIGCONT in the background: a shell's kill sends that, too
MOST_COLUMNS, MOST_LINES = 1000, 500  # a terminal that reports a larger size is drawn in this one: 65535 would take gigabytes
MOST_SEQUENCE = 32  # characters; Textual's parser spells out a longer sequence as keys
_URGENT = ("\x03", "\x1b[99;5u")  # Ctrl-C, also as kitty's protocol sends it
_SURROGATE = re.compile("[\ud800-\udfff]")


# what a terminal sends


class TerminalInput:
    """Turns the bytes that a terminal sends into messages. What is no key, paste or report is dropped, and ends nothing."""

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._received = Received()
        self._parser = XTermParser(debug)

    def feed(self, data: bytes, only_urgent: bool = False) -> Iterator[Message]:
        """The messages that are complete with these bytes. ``only_urgent``: Ctrl-C alone, all else is dropped."""
        found = self._received.feed(self._decode(data), time.monotonic())
        return self._messages([one for one in found if one in _URGENT] if only_urgent else found)

    def tick(self) -> Iterator[Message]:
        """The messages that are complete because nothing more has come; call it several times a second."""
        return self._messages(self._received.late(time.monotonic()))

    def _messages(self, found: Iterable[str]) -> Iterator[Message]:
        for one in found:
            if one.startswith(PASTE):
                yield Paste(one[len(PASTE) :])
            else:
                yield from (_bounded(message) for message in self._parse(one) if _is_meant(message))

    def _parse(self, whole: str) -> list[Message]:
        """The messages of a key or sequence; none where Textual's parser does not know it, or fails.

        `_timeout_time` is what the parser waits for: an Esc alone is a key at once, for `Received` has waited already, and a
        parser that waits after a whole sequence is replaced.
        """
        if len(whole) > MOST_SEQUENCE:
            return []
        parser = self._parser
        try:
            messages = list(parser.feed(whole))
            if parser._timeout_time is not None and len(whole) <= 2:
                parser._timeout_time = 0.0
                messages += parser.tick()
        except Exception:  # noqa: BLE001 - such as the character number 1114112; the parser is unusable after that
            self._replace_parser()
            return []
        if parser._timeout_time is not None:
            self._replace_parser()
        if parser.terminal_pixel_size is not None and not all(parser.terminal_pixel_size):
            parser.terminal_pixel_size = None  # unknown: the mouse is reported in cells
        return messages

    def _replace_parser(self) -> None:
        old, self._parser = self._parser, XTermParser(self._debug)
        self._parser.mouse_pixels, self._parser.last_x, self._parser.last_y = old.mouse_pixels, old.last_x, old.last_y
        self._parser.terminal_size, self._parser.terminal_pixel_size = old.terminal_size, old.terminal_pixel_size


def _is_meant(message: Message) -> bool:
    """True if a terminal can mean the message: no key is half a character, no window is without a column."""
    if isinstance(message, Key):
        return not _SURROGATE.search(message.key + (message.character or ""))
    return not isinstance(message, Resize) or all(message.size)


def _bounded(message: Message) -> Message:
    """The message; a size that is larger than any window becomes the largest that is drawn."""
    if isinstance(message, Resize):
        size = Size(min(message.size.width, MOST_COLUMNS), min(message.size.height, MOST_LINES))
        return Resize(size, size, size, message.pixel_size)
    return message


class PolledEvent(threading.Event):
    """An event that a poll waits for as well: its descriptor can be read while it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        super().set()
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        super().clear()
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def __del__(self) -> None:
        os.close(self._fd)


# what is sent to it


class PatientWriter(WriterThread):
    """Textual's writer, without its thread while the terminal takes text at once: a thread that wakes for each drawing costs as much as
    the write. Once the terminal refuses text it goes on taking text and drops it, where Textual's ends and blocks the screen.

    `_queue` and `_file` are the text that waits, here encoded, and the terminal.
    """

    gone = False  # whether the terminal refuses text

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file)
        self._encoding, self._errors = getattr(file, "encoding", None) or "utf-8", getattr(file, "errors", None) or "replace"
        self._at_once = _not_waiting(file.fileno())  # a descriptor of the terminal for writes that do not wait; -1 if it has none
        self._handing = threading.Lock()
        self._handed = self._done = 0  # texts handed to the thread, and those that it is done with

    def write(self, text: str) -> None:
        """Write what the terminal takes at once, and queue the rest; once the thread has ended by a bug, write it all, for it may be what
        gives the terminal back."""
        data = text.encode(self._encoding, self._errors)
        while self.is_alive():
            with self._handing, suppress(Full):
                if not self.backlog:
                    data = data[self._taken_at_once(data) :]
                if data:
                    self._hand(data)
                return
        self._write_rest(data)

    def stop(self) -> None:
        """Write the rest and end; a thread that could not be started (pids.max) has nothing to end."""
        if self.is_alive():
            super().stop()
        self._write_rest()
        if self._at_once >= 0:
            os.close(self._at_once)
            self._at_once = -1

    def run(self) -> None:
        """Write what is queued until `stop`."""
        while (data := self._queue.get()) is not None:
            self._try(self._write_all, data)
            self._done += 1

    @property
    def backlog(self) -> int:
        """Writes that the terminal has not taken yet."""
        return self._handed - self._done

    def _hand(self, data: bytes) -> None:
        """Queue it for the thread. Raises Full if the terminal takes nothing for a while."""
        self._handed += 1  # before the thread may be done with it
        try:
            self._queue.put(data, timeout=STUCK_S)  # type: ignore[arg-type]
        except Full:
            self._handed -= 1
            raise

    def _taken_at_once(self, data: bytes) -> int:
        """Bytes that the terminal has taken without a wait; all of them once it refuses text."""
        if self._at_once < 0 or self.gone:
            return len(data) if self.gone else 0
        try:
            return os.write(self._at_once, data)
        except BlockingIOError:
            return 0
        except OSError:
            self.gone = True
            return len(data)

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file.fileno(), data) :]

    def _try(self, call: Callable[..., object], *arguments: object) -> None:
        if not self.gone:
            try:
                call(*arguments)
            except (OSError, ValueError):
                self.gone = True

    def _write_rest(self, *more: bytes) -> None:
        """Write what the thread has not written, from the calling thread."""
        rest = [data for _ in range(self._queue.qsize()) if (data := self._queue.get()) is not None]
        self._try(self._write_all, b"".join([*rest, *more]))  # type: ignore[list-item]


def _not_waiting(fd: int) -> int:
    """A descriptor of the same terminal, opened anew, whose writes do not wait; -1 if it cannot be opened (another user's terminal)."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC) if os.isatty(fd) else -1
    except OSError:
        return -1


class RestoringDriver(LinuxDriver):
    """Textual's driver; reports to `gputop.system.tty` whether it has the terminal. Uses Textual's documented interface alone."""

    _takes = False  # whether the next write takes the terminal
    _failed = False  # whether a part of giving it back failed

    def start_application_mode(self) -> None:
        self._takes = True
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def write(self, data: str) -> None:
        """Write to the terminal; the first text, before its settings change, takes it."""
        if self._takes:
            self._takes = False
            tty.take(self.fileno, 2 if os.isatty(2) else 1)
        super().write(data)

    def stop_application_mode(self) -> None:
        super().stop_application_mode()
        if not self._failed:
            tty.given_back()


class TerminalDriver(RestoringDriver):
    """Textual's driver, which ends the application once its terminal is gone, where Textual's would spin on it for ever under nohup.

    It also cuts input by `TerminalInput`, and gives the terminal back when it is stopped or killed in the background. `_app` and
    `_loop` are the application and its event loop, `_file` is the terminal, `_key_thread` reads it, `_debug` is the parser's flag.
    """

    exit_event: PolledEvent
    _writer: PatientWriter | None = None
    _given_back = False

    def __init__(self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self.exit_event = PolledEvent()
        if not os.isatty(2) and isinstance(sys.__stdout__, TextIOWrapper):
            # Textual draws on standard error, which may go to a file.
            sys.__stdout__.reconfigure(errors="backslashreplace")
            self._file = sys.__stdout__

    @property
    def _writer_thread(self) -> PatientWriter | None:
        """The thread that Textual's driver writes by: ours in place of its own."""
        return self._writer

    @_writer_thread.setter
    def _writer_thread(self, writer: WriterThread | None) -> None:
        self._writer = None if writer is None else PatientWriter(writer._file)

    @property
    def backlog(self) -> int:
        """Writes that the terminal has not taken yet."""
        return 0 if self._writer is None else self._writer.backlog

    def _get_terminal_size(self) -> tuple[int, int]:
        """Size of the terminal, as Rich has it: if a terminal reports no size, Textual takes a line less than Rich and then lays out for
        ever."""
        size = self._app.console.size
        return min(size.width, MOST_COLUMNS), min(size.height, MOST_LINES)

    def process_message(self, message: Message) -> None:
        """Send a message to the application; a size in a sequence counts only from a terminal that has announced such reports."""
        if self._in_band_window_resize or not isinstance(message, Resize):
            super().process_message(message)

    def _run_input_thread(self) -> None:
        """Read input; a bug ends the application as any other, where Textual would print a traceback over the screen."""
        try:
            self.run_input_thread()
        except Exception as error:  # noqa: BLE001
            self._loop.call_soon_threadsafe(self._app._handle_exception, error)

    def run_input_thread(self) -> None:
        """Read input until the application ends or the terminal is gone."""
        received = TerminalInput(self._debug)
        watch = select.poll()
        watch.register(self.fileno, select.POLLIN)
        watch.register(self.exit_event, select.POLLIN)
        turns = 0  # looks since the last key
        while not self.exit_event.is_set():
            turns += 1
            for fd, happened in watch.poll(POLL_MS if turns <= TYPING_TURNS else None):
                if fd != self.fileno:
                    return
                turns = 0
                data = self._read() if happened & select.POLLIN else b""
                if not data:
                    self._end()
                    return
                for message in received.feed(data, self._is_flooded):
                    self.process_message(message)
                self._wait_for_application()
            for message in received.tick():
                self.process_message(message)

    @property
    def _is_flooded(self) -> bool:
        """True if no more keys are taken: no user types so many, and working through them would take hours."""
        return isinstance(self._app, TerminalApp) and self._app.keys.is_full

    def _wait_for_application(self) -> None:
        """Wait until the application has taken what was sent to it: the terminal holds the rest better than a queue that grows."""
        taken = threading.Event()
        with suppress(RuntimeError):  # the loop is closed: gputop ends
            self._loop.call_soon_threadsafe(taken.set)
            while not taken.wait(POLL_MS / 1000) and not self.exit_event.is_set():
                pass

    def _sigcont_application(self, *_: object) -> None:
        """Resume, unless gputop ends: a hang-up sends SIGCONT after SIGHUP, and a new input thread would then wait for ever.

        `_exit`: the application ends; `_must_signal_resume`: the terminal is not ours.
        """
        if self._app._exit or not os.isatty(self.fileno):
            return
        if self._writer is not None and not self._must_signal_resume:
            # SIGSTOP cannot be handled, so the modes are left only now; the terminal's settings from before the screen stay known.
            # Started in the background, there is no mode to leave yet.
            self.suspend_application_mode()
            self._must_signal_resume = True
        if self._is_foreground:
            super()._sigcont_application()
        else:
            asyncio.get_running_loop().call_later(AWAKE_S, self._stop_again)

    @property
    def _is_foreground(self) -> bool:
        """True if the terminal is ours; a terminal that does not control this process belongs to no other job."""
        try:
            return os.tcgetpgrp(self.fileno) == os.getpgrp()
        except OSError:
            return True

    def _stop_again(self) -> None:
        """Stop: in the background the terminal belongs to another process."""
        if self._is_foreground:
            self._sigcont_application()
        elif not self._app._exit:
            os.kill(os.getpid(), signal.SIGSTOP)

    def write(self, data: str) -> None:
        """Write to the terminal while it is ours: not before gputop is in the foreground, and nothing once it was given back."""
        if self._writer is not None and not self._given_back:
            super().write(compact(data) if RESET in data else data)

    def start_application_mode(self) -> None:
        self._given_back = False
        super().start_application_mode()

    def stop_application_mode(self) -> None:
        """Give the terminal back, unless another process has it already."""
        if self._has_terminal:
            super().stop_application_mode()
            self._given_back = True

    def disable_input(self) -> None:
        """Stop reading; text typed for another process is left to it."""
        if self._has_terminal:
            super().disable_input()
            if self._key_thread is not None and self._key_thread.is_alive():  # Textual's failed, and hides that
                self._failed = True
                self.exit_event.set()

    @property
    def _has_terminal(self) -> bool:
        """False before gputop is in the foreground, and while it is stopped."""
        return self._writer is not None and not self._must_signal_resume

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, 4096)
        except OSError:
            return b""

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.gone = True
        self._app.call_later(self._app.exit)


# the application, and drawing past Textual's compositor


class TerminalApp(App[int]):
    """Textual's application with our driver, keys that wait for each other, and bugs that end it in one line."""

    def __init__(self) -> None:
        super().__init__(driver_class=RestoringDriver if TEXTUAL_ONLY else TerminalDriver, watch_css=False)
        self.keys = KeyQueue(self)
        self._is_failing = False

    async def on_event(self, event: Event) -> None:
        """Pass events on; keys one after the other. What is typed or clicked while gputop ends is dropped: there is no screen any more."""
        if isinstance(event, (InputEvent, Paste)) and not self.screen_stack:
            return
        if not self.keys.holds(event):
            await super().on_event(event)

    def deliver_screenshot(self, filename: str | None = None, path: str | None = None, time_format: str | None = None) -> str | None:
        """The palette's: here, where recordings go, too; a server has no ~/Downloads, which Textual takes."""
        return super().deliver_screenshot(filename, path or os.getcwd(), time_format)

    def fail(self, error: Exception) -> None:
        """End, for a bug: it is kept for a bug report, and printed in a line once the terminal is given back."""
        self._handle_exception(error)

    def _handle_exception(self, error: Exception) -> None:
        """Textual calls this with what a handler raised, and would print a traceback with all local variables.

        `_return_code` is the exit code, `_exception` and its event are for a test's pilot, `_close_messages_no_wait` ends the application.
        """
        if self._is_failing:
            return
        self._is_failing = True
        crash.end_with(error)
        if TEXTUAL_ONLY:
            super()._handle_exception(error)
            return
        self._return_code = 1
        self._exception = self._exception or error
        self._exception_event.set()
        self._close_messages_no_wait()


def is_behind(app: App[Any]) -> bool:
    """True if the terminal has not taken all that was sent: drawing more would only pile up. `_driver` writes to the terminal."""
    return not TEXTUAL_ONLY and isinstance(app._driver, TerminalDriver) and app._driver.backlog > 0


def send(app: App[Any], text: str) -> None:
    """Write to the terminal past the compositor, where `can_paint`; as one update where the terminal knows those (`_sync_available`)."""
    if app._driver is not None:
        app._driver.write(f"{SYNC_START}{text}{SYNC_END}" if app._sync_available else text)


def can_paint(screen: Screen[Any]) -> bool:
    """True if the terminal shows exactly what this screen drew last, in colours that need no conversion (under NO_COLOR Textual
    converts what a theme paints), so that `send` may change it.

    `_notifications` lie over the screen; `_dirty_widgets` and `_layout_required` are what Textual has still to draw.
    """
    if TEXTUAL_ONLY:
        return False
    app = screen.app
    is_ours = isinstance(app._driver, TerminalDriver) and (app.native_ansi_color or not app.no_color)
    return is_ours and app.screen is screen and not (len(app._notifications) or screen._dirty_widgets or screen._layout_required)


def await_repaint(widgets: Iterable[Widget]) -> bool:
    """True if Textual has still to draw one of the widgets (`_repaint_required`); asked where `can_paint`."""
    return any(widget._repaint_required for widget in widgets)


def parse_styles(app: App[Any], widgets: Iterable[Widget]) -> None:
    """Parse the style sheets of these widgets' classes, as Textual does when the first of each is shown (`_post_register`)."""
    if not TEXTUAL_ONLY:
        for widget in widgets:
            widget._post_register(app)
        app.stylesheet.parse()


class RowScreen(Screen[None]):
    """A screen that paints its own layouts where it can; Textual would send all that moved anew."""

    paint_layout: Callable[[], bool] | None = None  # set while a layout is awaited; False: it cannot be painted that way

    def _compositor_refresh(self) -> None:
        """Textual calls this to paint `_dirty_regions`, after a layout those of all that moved."""
        paint, self.paint_layout = self.paint_layout, None
        if paint is not None:
            if self.app.screen is self and paint():
                self._compositor._dirty_regions.clear()
                self._dirty_widgets.clear()
                return
            self._compositor._dirty_regions.add(self.size.region)
        super()._compositor_refresh()


class LoneScreen(ModalScreen[None]):
    """A modal screen that paints its own box alone while it opens; Textual would repaint the dashboard around it, twice."""

    def __init__(self, lone_widget: Widget) -> None:
        super().__init__()
        self._lone_widget = lone_widget
        self.opens_alone = False  # whether what is around the box is up to date on the terminal; set before the screen is pushed
        self._opens_in: Size | None = None  # the terminal's size while the box opens alone
        self._is_alone = False  # whether nothing but the box is being painted

    def begin_to_open(self) -> None:
        """Call it while composing, and `end_opening` once the box is drawn."""
        self._opens_in = self.app.size if self.opens_alone and not TEXTUAL_ONLY else None

    def end_opening(self) -> None:
        """End the opening: from now on all that Textual asks for is painted."""
        self._opens_in = None

    def _compositor_refresh(self) -> None:
        """Textual calls this to paint `_dirty_regions`; while the box opens, the whole screen is no such region."""
        if TEXTUAL_ONLY:
            super()._compositor_refresh()
            return
        whole, dirty = self.size.region, self._compositor._dirty_regions
        box = self._lone_widget.region.intersection(whole)
        if self._opens_in == self.app.size and box != whole:
            dirty.discard(whole)
        self._is_alone = all(map(box.contains_region, dirty))
        super()._compositor_refresh()
        self._is_alone = False

    def render_lines(self, crop: Region) -> list[Strip]:
        """Lines of the screen around the box; blank, and never seen, if only the box is painted."""
        return [Strip.blank(crop.width)] * crop.height if self._is_alone else super().render_lines(crop)
