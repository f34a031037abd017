"""The terminal driver: Textual's, made to notice that its terminal is gone.

Textual's own input thread spins on a closed terminal for ever, and its writer blocks the application once nobody reads.
Under nohup, where no SIGHUP ends the program, both would happen.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver

from gputop.tui.guard import Guard
from gputop.tui.pasted import Pasted

POLL_MS = 100
"""How often the parser may decide that a lone Esc is a key, and `exit_event` is looked at, after a key."""
IDLE_POLL_MS = 500
"""The same while nobody types: whoever ends us then waits that long at most."""
TYPING_TURNS = 10
HEAR_S = 0.2
"""How long one who is woken in the background stays awake: a shell wakes what it kills, and that must be heard."""

GUARD_AFTER_S = 0.5
"""It takes some milliseconds to start, which the first screen is not to wait for."""


class PatientWriter(WriterThread):
    """A writer that goes on taking text, and throws it away, once the terminal refuses it."""

    gone = False

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


class TerminalDriver(LinuxDriver):
    """Ends the application when the terminal hangs up."""

    _writer: PatientWriter | None = None
    _guard: Guard | None = None
    _guarding: asyncio.TimerHandle | None = None

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
        return size.width, size.height

    def run_input_thread(self) -> None:
        """Read input until the application ends or the terminal is gone."""
        parser, pasted = XTermParser(self._debug), Pasted()
        decode = getincrementaldecoder("utf-8")("replace").decode
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
                for event in parser.feed(pasted.feed(decode(data))):
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)

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

    def start_application_mode(self) -> None:
        """Take the terminal, and have it guarded from a moment on in which nothing else is to do."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self._has_terminal:
            self._guarding = asyncio.get_running_loop().call_later(GUARD_AFTER_S, self._begin_to_guard)

    def _begin_to_guard(self) -> None:
        if self.attrs_before is not None:
            with suppress(OSError, termios.error):
                self._guard = Guard(self.fileno, self.attrs_before)

    def stop_application_mode(self) -> None:
        """Give the terminal back, unless another has it already."""
        if self._has_terminal:
            super().stop_application_mode()

    def close(self) -> None:
        """End what was begun with the application mode; by now all has been written that gives the terminal back."""
        super().close()
        if self._guarding is not None:
            self._guarding.cancel()
        if self._guard is not None:
            self._guard.close()
            self._guard = None

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
