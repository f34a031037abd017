"""A command that is started while a stream is read for it: signals are passed on, and its end is the end of the reading."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from gputop.stream.reader import Reader
from gputop.system import crash
from gputop.system.console import notify
from gputop.system.ending import ENDS
from gputop.system.errors import UserError, not_run
from gputop.system.priority import ordinary_priority
from gputop.system.text import clean

if TYPE_CHECKING:
    import subprocess

PASSED_ON = (*ENDS, signal.SIGUSR1, signal.SIGUSR2)
"""Job schedulers announce a job's end with the last two."""


class Command(Reader):
    """The command ``argv``; without one, the reading goes on until a signal."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None  # in which its torch processes can be asked for traces

    @property
    def pid(self) -> int:
        """Process id of the command once it was started; 0 before, and without one."""
        return 0 if self._child is None else self._child.pid

    @property
    def runs(self) -> bool:
        """True if the command was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def listen(self) -> None:
        """Take signals for the command from now on; where none runs, they end the loop."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the command's end wakes the loop
        self.loop.listen(PASSED_ON, self._on_signal)

    def start(self) -> None:
        """Start the command, if there is one. Raises UserError if that fails."""
        if not self.argv:
            return
        import subprocess

        from gputop.traces.environment import added

        more, self._folder = added(os.environ)
        try:
            with ordinary_priority():
                self._child = subprocess.Popen(self.argv, env={**os.environ, **more})
        except OSError as error:
            self.end()
            code = 127 if isinstance(error, FileNotFoundError) else 126  # as shells do
            raise UserError(not_run(error), code=code) from None
        if self.loop.ending.asked:  # a signal came during the start: it is the command's
            self._child.send_signal(self.loop.ending.asked)
            self.loop.ending.asked = 0

    def attend(self) -> None:
        """Read until the end. An error of gputop's is printed, and the command runs on."""
        try:
            self.loop.run()
        except Exception as error:  # noqa: BLE001 - no error of gputop's may end the command
            self.loop.problem = clean(crash.reason(error))
            notify(self.loop.problem if self._child is None else f"{self.loop.problem}; the command runs on")
            if self._child is not None:
                self._child.wait()

    def stop(self, kill_s: float) -> bool:
        """Send SIGTERM, and ``kill_s`` later SIGKILL; returns whether the command was running."""
        from threading import Timer

        if self._child is None or not self.runs:
            return False
        self._child.terminate()
        killing = Timer(kill_s, self._child.kill)
        killing.daemon = True
        killing.start()
        return True

    def is_over(self) -> bool:
        return self._child is not None and self._child.poll() is not None

    def end(self) -> None:
        """Remove the folder, unless the command runs on."""
        if self._folder is not None and not self.runs:
            from gputop.traces.environment import remove
            from gputop.traces.flight import report_folder

            report_folder(self._folder, notify)
            remove(self._folder)
            self._folder = None

    def code(self) -> int:
        """The command's exit code once it has ended, 128 + number after a signal."""
        assert self._child is not None
        code = self._child.wait()
        return 128 - code if code < 0 else code

    def _on_signal(self, number: int) -> None:
        """Stop, or pass the signal to the command: its end stops the loop."""
        if self._child is None or self._child.poll() is not None:
            self.loop.ending.take(number)
        else:
            pass_on(self._child, number)


def pass_on(child: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a child, except a Ctrl-C that it has got from the terminal."""
    if number != signal.SIGINT or not _is_in_foreground(child.pid):
        child.send_signal(number)


def _is_in_foreground(pid: int) -> bool:
    """True if the terminal's Ctrl-C reaches the process anyway: many programs take a second SIGINT as "quit without saving"."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgid(pid)
    except OSError:
        return False
