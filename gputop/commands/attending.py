"""Attending without a screen: reading a collector until a signal, for a time, or while a command runs that is started for it.

`gputop record` and `gputop watch` are this, with what they do with each item.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gputop.commands.options import RECORDER, ask_sudo, leave_root, stream_argv
from gputop.system import crash
from gputop.system.console import notify
from gputop.system.ending import DRAIN_S, ENDS, Ending
from gputop.system.errors import UserError, not_run
from gputop.system.priority import SCREEN_PRIORITY, ordinary_priority
from gputop.system.program import return_pages
from gputop.system.text import clean

if TYPE_CHECKING:
    import subprocess

    from gputop.model.frame import Frame, Header
    from gputop.stream.restarts import LastingStream

WAIT_S = 0.2  # s for the stream, between looks at the command and at signals
SILENT_S = 10.0  # s (and two intervals) without a reading, after which a line says so: the collector hangs or was stopped; a choice
PASSED_ON = (*ENDS, signal.SIGUSR1, signal.SIGUSR2)
"""Job schedulers announce a job's end with the last two."""


def command_of(args: argparse.Namespace) -> list[str]:
    """The command behind ``--``, empty without one. Raises UserError for a ``--`` alone."""
    argv: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.command and not any(argv[:1]):
        raise UserError("there is no command behind --", code=2)
    return argv


def lasting_stream(args: argparse.Namespace) -> LastingStream:
    """The stream of a collector, here or on --host; a new collector is started whenever one ends."""
    from gputop.stream.child import ChildStream
    from gputop.stream.restarts import LastingStream

    ask_sudo(args)
    if args.host is not None:
        leave_root(*RECORDER)  # ssh uses the user's keys and known hosts
    collector = stream_argv(args)
    return LastingStream(ChildStream(collector), lambda: ChildStream(collector), notify)


class Attending(ABC):
    """One run: `begin`, maybe `start` a command, `run`."""

    done = "read"  # what it does with readings, in a word for an error

    def __init__(self, stream: LastingStream, interval: float, duration: float | None) -> None:
        """``interval`` of the collector, ``duration`` after which to stop (None: none), in seconds."""
        self.stream = stream
        self.command: subprocess.Popen[bytes] | None = None
        self.problem = ""  # why it does not do any more what it should; the command runs on
        self._interval, self._duration = interval, duration
        self._ending = Ending()
        self._last_s = float("inf")  # until when what has come is taken, once it is over
        self._runs = False
        self._started = time.monotonic()
        self._frames = 0
        self._first_ns = 0
        self._silence_told = False
        self._wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the command's end wakes this
        for signum in PASSED_ON:
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # under nohup it stays ignored
                signal.signal(signum, self._on_signal)

    @abstractmethod
    def take_header(self, header: Header) -> None:
        """A header comes when the stream begins, when a clock has jumped, and when another collector goes on."""

    @abstractmethod
    def take_frame(self, frame: Frame) -> None:
        """The next frame."""

    def rest_s(self) -> float:
        """Seconds for which nothing need be read. Each wake-up costs cold caches, so there is not one for every frame."""
        return 0.0

    def silence_over(self, silent_s: float) -> None:
        """Readings come again after a silence that was told."""
        notify(f"readings come again: {silent_s:.0f} s are missing")

    def begin(self) -> None:
        """Wait for the first frame. Raises UserError if none comes, or after a signal."""
        while self._frames == 0:
            if self._ending.asked:
                raise UserError(f"stopped before the first reading: nothing was {self.done}", code=128 + self._ending.asked)
            self._read(WAIT_S)
            if self.stream.trouble:
                raise UserError(f"the collector ended at once: {self.stream.why}")
        self._started = time.monotonic()

    def start(self, argv: list[str]) -> None:
        """Start the command. Raises UserError if that fails."""
        import subprocess

        try:
            with ordinary_priority():
                self.command = subprocess.Popen(argv)
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126  # as shells do
            raise UserError(not_run(error), code=code) from None
        if self._ending.asked:  # a signal came during the start
            self.command.send_signal(self._ending.asked)

    def run(self) -> None:
        """Read until the end (see `is_over`), and then for `DRAIN_S` the frames that still come. An error of gputop's is printed, and the
        command runs on."""
        self._runs = True
        try:
            while not self._ends():
                self._read(WAIT_S)
                self._tell_silence()
                if not self.stream.waits:
                    self._rest()
            while self.stream.waits and time.monotonic() < self._last_s:
                self._read(0.0)
        except Exception as error:  # noqa: BLE001 - no error of gputop's may end the command
            self.problem = clean(crash.reason(error))
            notify(self.problem if self.command is None else f"{self.problem}; the command runs on")
            if self.command is not None:
                self.command.wait()

    def is_over(self) -> bool:
        """Whether the time is up, the command has ended, or, without one, a signal came."""
        if self._duration is not None and time.monotonic() - self._started >= self._duration:
            return True
        return bool(self._ending.asked) if self.command is None else self.command.poll() is not None

    def command_code(self) -> int:
        """The command's exit code once it has ended, 128 + number after a signal."""
        assert self.command is not None
        code = self.command.wait()
        return 128 - code if code < 0 else code

    @property
    def silent_s(self) -> float:
        """Seconds for which a running collector has been silent; 0 if that is no longer than usual."""
        silent_s = self.stream.silent_s
        return silent_s if silent_s > SILENT_S + 2 * self._interval and not self.stream.trouble else 0.0

    def _ends(self) -> bool:
        """Whether the stream is ending. The first True gives the collector `DRAIN_S` more for its last frames."""
        if self._last_s == float("inf") and self.is_over():
            self._last_s = time.monotonic() + DRAIN_S
        return self._last_s < float("inf")

    def _rest(self) -> None:
        """Sleep for `rest_s`, or until a signal comes."""
        rest_s = min(self.rest_s(), self.stream.due_s)
        if self._duration is not None:
            rest_s = min(rest_s, self._started + self._duration - time.monotonic())
        if rest_s > 0.0 and select.select([self._wakes], [], [], rest_s)[0]:
            os.read(self._wakes, 4096)

    def _tell_silence(self) -> None:
        """Say once that a running collector gives nothing."""
        if self.silent_s and not self._silence_told:
            self._silence_told = True
            notify(f"no reading for {self.silent_s:.0f} s: gputop collect hangs, or was stopped; still waiting")

    def _read(self, wait_s: float) -> None:
        """Take what comes within ``wait_s``."""
        from gputop.model.frame import Header

        SCREEN_PRIORITY.check(time.monotonic_ns())
        silent_s = self.stream.silent_s
        for item in self.stream.read(wait_s):
            if self._runs and self._ends() and time.monotonic() > self._last_s:
                return  # one read may hold more than is ever taken
            if self._silence_told:
                self._silence_told = False
                self.silence_over(silent_s)
            if isinstance(item, Header):
                self.take_header(item)
            else:
                self._take_in_time(item)

    def _take_in_time(self, frame: Frame) -> None:
        self._first_ns = self._first_ns or frame.t_ns
        if self._duration is not None and frame.t_ns - self._first_ns > self._duration * 1e9:
            return  # after --duration by the frame's own time: it may have waited in the pipe
        self.take_frame(frame)
        self._frames += 1
        if frame.key:
            return_pages()

    def _on_signal(self, number: int, _frame: object) -> None:
        """Stop, or pass the signal to the command, whose end stops this."""
        if self.command is None or self.command.poll() is not None:
            self._ending.take(number)
        elif number != signal.SIGINT or not _is_in_foreground(self.command.pid):
            self.command.send_signal(number)


def _is_in_foreground(pid: int) -> bool:
    """Whether the terminal's Ctrl-C reaches the process anyway: many programs take a second SIGINT as "quit without saving"."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgid(pid)
    except OSError:
        return False
