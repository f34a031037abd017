"""The terminal driver: Textual's, made to notice that its terminal is gone.

Textual's own input thread spins on a closed terminal for ever, and its writer blocks the application once nobody reads.
Under nohup, where no SIGHUP ends the program, both would happen.
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

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key, Paste, Resize
from textual.geometry import Size
from textual.message import Message

from gputop.tui.received import PASTE, Received

POLL_MS = 100
"""How often the parser may decide that a lone Esc is a key, and `exit_event` is looked at, after a key."""
IDLE_POLL_MS = 500
"""The same while nobody types: whoever ends us then waits that long at most."""
TYPING_TURNS = 10
STUCK_S = 1.0  # s between looks whether the thread that writes is still there, while its queue is full
HEAR_S = 0.2
"""How long one who is woken in the background stays awake: a shell wakes what it kills, and that must be heard."""


MOST_COLUMNS, MOST_LINES = 1000, 500
"""What is drawn of a terminal that says it is larger: a size of 65535 would take gigabytes."""
MOST_SEQUENCE = 32  # characters; Textual's parser spells out a longer one as keys
_URGENT = ("\x03", "\x1b[99;5u")
"""Ctrl-C, also as kitty's protocol sends it."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class TerminalInput:
    """From the bytes that a terminal sends to messages; what is no key, paste or report is nothing, and ends nothing."""

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._received = Received()
        self._parser = XTermParser(debug)

    def feed(self, data: bytes, only_urgent: bool = False) -> Iterator[Message]:
        """What comes of these bytes, and of those before them. ``only_urgent``: Ctrl-C alone, all else is dropped."""
        found = self._received.feed(self._decode(data), time.monotonic())
        return self._messages([one for one in found if one in _URGENT] if only_urgent else found)

    def tick(self) -> Iterator[Message]:
        """What comes of it that nothing more has come; call it several times a second."""
        return self._messages(self._received.late(time.monotonic()))

    def _messages(self, found: Iterable[str]) -> Iterator[Message]:
        for one in found:
            if one.startswith(PASTE):
                yield Paste(one[len(PASTE) :])
            else:
                yield from (_bounded(message) for message in self._parse(one) if _is_meant(message))

    def _parse(self, whole: str) -> list[Message]:
        """The messages of a key or a sequence; none of one that Textual does not know, or fails at."""
        if len(whole) > MOST_SEQUENCE:
            return []
        parser = self._parser
        try:
            met = list(parser.feed(whole))
            if parser._timeout_time is not None and len(whole) <= 2:
                parser._timeout_time = 0.0  # Esc, or Alt and a key: it need not wait for more
                met += parser.tick()
        except Exception:  # noqa: BLE001 - such as the character number 1114112, and the parser is through with
            self._begin_anew()
            return []
        if parser._timeout_time is not None:
            self._begin_anew()
        if parser.terminal_pixel_size is not None and not all(parser.terminal_pixel_size):
            parser.terminal_pixel_size = None  # not known: the mouse is told in cells
        return met

    def _begin_anew(self) -> None:
        was, self._parser = self._parser, XTermParser(self._debug)
        self._parser.mouse_pixels, self._parser.last_x, self._parser.last_y = was.mouse_pixels, was.last_x, was.last_y
        self._parser.terminal_size, self._parser.terminal_pixel_size = was.terminal_size, was.terminal_pixel_size


def _is_meant(message: Message) -> bool:
    """Whether a terminal can mean it: no key is half a character, no window has no column."""
    if isinstance(message, Key):
        return not _SURROGATE.search(message.key + (message.character or ""))
    return not isinstance(message, Resize) or all(message.size)


def _bounded(message: Message) -> Message:
    """The same; of a window that says it is larger than any, what is drawn."""
    if isinstance(message, Resize):
        size = Size(min(message.size.width, MOST_COLUMNS), min(message.size.height, MOST_LINES))
        return Resize(size, size, size, message.pixel_size)
    return message


class PatientWriter(WriterThread):
    """A writer that goes on taking text, and throws it away, once the terminal refuses it."""

    gone = False

    def write(self, text: str) -> None:
        """Queue text; once the thread has ended by a bug, write it at once, for it may be what gives the terminal back."""
        while self.is_alive():
            with suppress(Full):
                self._queue.put(text, timeout=STUCK_S)
                return
        self._write_left(text)

    def stop(self) -> None:
        """Write what is left and end; one that could not be started (pids.max) has nothing to end."""
        if self.is_alive():
            super().stop()
        self._write_left()

    def run(self) -> None:
        """Write what is queued; never die before `stop`, which returns once all of it is out."""
        while (text := self._queue.get()) is not None:
            self._do(self._file.write, text)
            if self._queue.empty():
                self._do(self._file.flush)
        self._do(self._file.flush)

    def _do(self, what: Callable[..., object], *arguments: str) -> None:
        if not self.gone:
            try:
                what(*arguments)
            except (OSError, ValueError):
                self.gone = True

    def _write_left(self, *more: str) -> None:
        """What the thread has not written, from the thread that asks."""
        left = [text for _ in range(self._queue.qsize()) if (text := self._queue.get()) is not None]
        if not self.gone:
            with suppress(OSError, ValueError):
                self._file.write("".join([*left, *more]))
                self._file.flush()


class TerminalDriver(LinuxDriver):
    """Ends the application when the terminal hangs up."""

    _writer: PatientWriter | None = None
    _given_back = False

    def __init__(self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        if not os.isatty(2) and isinstance(sys.__stdout__, TextIOWrapper):
            # Textual draws on standard error, which may go to a file.
            sys.__stdout__.reconfigure(errors="backslashreplace")
            self._file = sys.__stdout__

    @property
    def _writer_thread(self) -> PatientWriter | None:
        return self._writer

    @_writer_thread.setter
    def _writer_thread(self, writer: WriterThread | None) -> None:
        self._writer = None if writer is None else PatientWriter(writer._file)

    @property
    def backlog(self) -> int:
        """Writes that the terminal has not taken yet."""
        return 0 if self._writer is None else self._writer._queue.qsize()

    def _get_terminal_size(self) -> tuple[int, int]:
        """As Rich tells it: for a terminal that tells none Textual takes a line less than that, and then lays out for ever."""
        size = self._app.console.size
        return min(size.width, MOST_COLUMNS), min(size.height, MOST_LINES)

    def process_message(self, message: Message) -> None:
        """Send it to the application; a size in a sequence counts only from a terminal that has said that it sends those."""
        if self._in_band_window_resize or not isinstance(message, Resize):
            super().process_message(message)

    def _run_input_thread(self) -> None:
        """Read, and end the application where that fails."""
        try:
            self.run_input_thread()
        except Exception as error:  # noqa: BLE001 - a bug, which ends the application as any other
            self._loop.call_soon_threadsafe(self._app._handle_exception, error)

    def run_input_thread(self) -> None:
        """Read input until the application ends or the terminal is gone."""
        heard = TerminalInput(self._debug)
        watch = select.poll()
        watch.register(self.fileno, select.POLLIN)
        idle_turns = 0
        while not self.exit_event.is_set():
            idle_turns += 1
            for _, happened in watch.poll(POLL_MS if idle_turns <= TYPING_TURNS else IDLE_POLL_MS):
                idle_turns = 0
                data = self._read() if happened & select.POLLIN else b""
                if not data:
                    self._hang_up()
                    return
                for message in heard.feed(data, self._is_flooded):
                    self.process_message(message)
                self._wait_for_application()
            for message in heard.tick():
                self.process_message(message)

    @property
    def _is_flooded(self) -> bool:
        """Whether no more keys are taken: what is no person's typing would be worked through for hours."""
        typed = getattr(self._app, "typed", None)
        return typed is not None and typed.is_full

    def _wait_for_application(self) -> None:
        """Until it has taken what was sent to it: the terminal holds the rest better than a queue that grows."""
        taken = threading.Event()
        with suppress(RuntimeError):  # the loop is closed: we are leaving
            self._loop.call_soon_threadsafe(taken.set)
            while not taken.wait(POLL_MS / 1000) and not self.exit_event.is_set():
                pass

    def _sigcont_application(self, *_: object) -> None:
        """Resume; a hang-up sends SIGCONT after SIGHUP too, and then waiting for a new input thread would never end."""
        if self._app._exit or not os.isatty(self.fileno):
            return
        if self._writer is not None and not self._must_signal_resume:
            # Nobody can prepare for SIGSTOP: the modes are left now, and so the terminal as it was before us stays known.
            # Started in the background, there are none to leave yet.
            self.suspend_application_mode()
            self._must_signal_resume = True
        if self._is_foreground:
            super()._sigcont_application()
        else:
            asyncio.get_running_loop().call_later(HEAR_S, self._stop_again)

    @property
    def _is_foreground(self) -> bool:
        """Whether the terminal is ours; one that does not control us is nobody else's."""
        try:
            return os.tcgetpgrp(self.fileno) == os.getpgrp()
        except OSError:
            return True

    def _stop_again(self) -> None:
        """In the background there is nothing to do: the terminal is another's, and whoever woke us wanted nothing else."""
        if self._is_foreground:
            self._sigcont_application()
        elif not self._app._exit:
            os.kill(os.getpid(), signal.SIGSTOP)

    def write(self, data: str) -> None:
        """Write to the terminal while it is ours: not before we are in the foreground, and nothing once it was given back."""
        if self._writer is not None and not self._given_back:
            super().write(data)

    def start_application_mode(self) -> None:
        """Take the terminal."""
        self._given_back = False
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def stop_application_mode(self) -> None:
        """Give the terminal back, unless another has it already."""
        if self._has_terminal:
            super().stop_application_mode()
            self._given_back = True

    def disable_input(self) -> None:
        """Read no more; what is typed to another is left to it."""
        if self._has_terminal:
            super().disable_input()

    @property
    def _has_terminal(self) -> bool:
        """Not before it was in the foreground, and not while it is stopped."""
        return self._writer is not None and not self._must_signal_resume

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, 4096)
        except OSError:
            return b""

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.gone = True
        self._app.call_later(self._app.exit)
