"""Record until Ctrl-C, for a time, or while a command runs; the command's exit code is passed on.

With sudo the probes are loaded as root; the file and the command belong to the user who typed it.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import select
import signal
import time
from typing import TYPE_CHECKING

from gputop.commands.options import RECORDER, add_sampling, ask_sudo, duration, leave_root, number, stream_argv
from gputop.system import crash
from gputop.system.console import notify
from gputop.system.errors import UserError, not_run
from gputop.system.priority import SCREEN_PRIORITY, ordinary_priority
from gputop.system.program import return_freed_memory, return_pages
from gputop.system.text import clean, counted

if TYPE_CHECKING:
    import subprocess

    from gputop.model.frame import Frame, Header
    from gputop.recording.lasting import Lasting
    from gputop.recording.writer import Tell
    from gputop.session.restarts import LastingStream
    from gputop.session.stalled import Unwatched

EXAMPLES = """examples:
  gputop record                                  until Ctrl-C, to gputop-HOST-DATE-TIME.gputop
  gputop record -o run.gputop -- python train.py
  gputop record --max-size 100M --max-files 3    the last 200 MB or more, in files of 100 MB
  gputop record --keep 30d --max-size 1G         a month: ticks around incidents and markers, seconds of days, minutes of all
with --keep and -o node.gputop each start makes a file (node.gputop, node.2.gputop …); older ones are thinned with it, and go when too old
a growing recording can be opened: gputop replay run.gputop
recording pauses while less than 15% of the disk (4 GB at most) is free
"""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LEAST_BYTES, LEAST_KEPT_BYTES = 1 << 20, 32 << 20  # of --max-size; with --keep
_WAIT_S = 0.2  # for the stream, between looks at the command and at signals
SILENT_S = 10.0  # s (and two intervals) without a reading, after which a line says so: the collector hangs or was stopped; a choice
NO_READING = "the collector gave no reading"
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Job schedulers announce a job's end with the last two."""


def size(text: str) -> int:
    """Bytes of a text such as ``100M``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    value = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if value < LEAST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of at least 1M: write 100M or 2G")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="a new file (gputop-HOST-DATE-TIME.gputop)")
    parser.add_argument("--duration", type=duration(), metavar="TIME", help="stop after 90s, 10m, 2h")
    parser.add_argument("--max-size", type=size, metavar="SIZE", help="begin the next file, .2, .3 …, before this one is larger")
    parser.add_argument("--max-files", type=number(), default=0, metavar="N", help="with --max-size: keep only the newest N files (all)")
    parser.add_argument(
        "--keep", type=duration("10m"), metavar="TIME",
        help="with --max-size: hold 30d, 12h in all files of this name, the older the coarser, incidents last",
    )  # fmt: skip
    parser.add_argument("--host", metavar="[USER@]NODE", help="record another machine: runs `gputop collect` there over ssh")
    parser.add_argument("--no-auto-stacks", action="store_true", help="do not take stacks when an incident begins")
    add_sampling(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="record while this runs")


def run(args: argparse.Namespace) -> int:
    """Record. Returns the command's exit code, if there is a command (128 + number after a signal)."""
    if args.max_files and not args.max_size:
        raise UserError("--max-files needs --max-size", code=2)
    if args.keep and (args.max_files or (args.max_size or 0) < LEAST_KEPT_BYTES):
        raise UserError("--keep needs --max-size of at least 32M, and no --max-files", code=2)
    argv = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.command and not any(argv[:1]):
        raise UserError("there is no command behind --", code=2)
    if args.output == "-":
        raise UserError("a recording is a file: for standard output there is gputop collect", code=2)
    from gputop.session.child import ChildStream
    from gputop.session.restarts import LastingStream

    return_freed_memory()
    ask_sudo(args)
    if args.host is not None:
        leave_root(*RECORDER)  # ssh uses the user's keys and known hosts
    collector = stream_argv(args)
    stream = LastingStream(ChildStream(collector), lambda: ChildStream(collector), notify)
    run = _Run(args, stream)
    try:
        leave_root(*RECORDER)  # the file and the command belong to the user
        run.begin()
        if argv:
            run.start(argv)
        run.record()
    finally:
        stream.close()
        run.close()
    return run.exit_code()


class _Run:
    """One run of the recorder."""

    def __init__(self, args: argparse.Namespace, stream: LastingStream) -> None:
        self._args = args
        self._stream = stream
        self._command: subprocess.Popen[bytes] | None = None
        self._file: Lasting | None = None
        self._diagnosis: Unwatched | None = None
        self._problem = ""
        self._stopped_by = 0
        self._started = time.monotonic()
        self._frames = 0
        self._first_ns = 0
        self._silence_told = False
        self._wakes, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the command's end wakes the recorder
        for signum in _PASSED_ON:
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # under nohup it stays ignored
                signal.signal(signum, self._on_signal)

    def begin(self) -> None:
        """Wait for the first frame. Raises UserError if none comes, after a signal, or if the file cannot be created."""
        while self._frames == 0:
            if self._stopped_by:
                raise UserError("stopped before the first reading: nothing was recorded", code=128 + self._stopped_by)
            self._take(_WAIT_S)
            if self._stream.trouble:
                raise UserError(f"the collector ended at once: {self._stream.why}")
        self._started = time.monotonic()

    def start(self, argv: list[str]) -> None:
        """Start the command. Raises UserError if that fails."""
        import subprocess

        try:
            with ordinary_priority():
                self._command = subprocess.Popen(argv)
        except OSError as error:
            file, self._file = self._file, None
            if file is not None:
                file.rotation.discard()  # its name is free for the next try
            code = 127 if isinstance(error, FileNotFoundError) else 126  # as shells do
            raise UserError(not_run(error), code=code) from None
        if self._stopped_by:  # a signal came during the start
            self._command.send_signal(self._stopped_by)

    def record(self) -> None:
        """Record until stopped. A recorder that fails says so, and the command runs on."""
        try:
            while not self._over():
                self._take(_WAIT_S)
                self._tell_silence()
                if not self._stream.waits:
                    self._rest()
            while self._stream.waits:
                self._take(0.0)
        except Exception as error:  # noqa: BLE001 - no error of the recorder may end the command
            self._problem = clean(crash.reason(error))
            notify(self._problem if self._command is None else f"{self._problem}; the command runs on")
            if self._command is not None:
                self._command.wait()

    def _rest(self) -> None:
        """Sleep until the next block is nearly full, or a signal comes: waking for every frame costs cold caches every time."""
        rest_s = min(self._file.rotation.full_in_ns / 1e9, self._stream.due_s) if self._file is not None else 0.0
        if self._args.duration is not None:
            rest_s = min(rest_s, self._started + self._args.duration - time.monotonic())
        if rest_s > 0.0 and select.select([self._wakes], [], [], rest_s)[0]:
            os.read(self._wakes, 4096)

    def _tell_silence(self) -> None:
        """Say once that a running collector gives nothing."""
        if self._silent_s and not self._silence_told:
            self._silence_told = True
            notify(f"no reading for {self._silent_s:.0f} s: gputop collect hangs, or was stopped; still waiting")

    @property
    def _silent_s(self) -> float:
        """How long a running collector has given nothing, 0 while that is no longer than usual."""
        silent_s = self._stream.silent_s
        return silent_s if silent_s > SILENT_S + 2 * self._args.interval and not self._stream.trouble else 0.0

    def _end_silence(self, silent_s: float) -> None:
        if self._silence_told and self._file is not None:
            self._silence_told = False
            self._file.miss(silent_s, NO_READING)
            notify(f"readings come again: {silent_s:.0f} s are missing")

    def close(self) -> None:
        """Complete the file, and say where it is and what is missing."""
        if self._file is None:
            return
        if why := self._problem or self._stream.trouble or (NO_READING if self._silent_s else ""):
            self._file.miss(self._stream.silent_s, why)
        self._file.close()
        rotation, missing = self._file.rotation, self._file.missing
        runs_on = "; the command runs on" if self._command is not None and self._command.poll() is None else ""
        if rotation.frames or not self._problem:
            notify(f"{counted(rotation.frames, 'frame')} in {rotation.summary()}{f'; {missing}' if missing else ''}{runs_on}")
        if rotation.problem and not missing and not self._problem:
            notify(rotation.problem)
        self._problem = self._problem or rotation.problem or missing

    def exit_code(self) -> int:
        """The command's exit code; without a command 1 if the recording is incomplete."""
        if self._command is None:
            return 1 if self._problem else 0
        code = self._command.wait()
        return 128 - code if code < 0 else code

    def _take(self, wait_s: float) -> None:
        """Take what comes within ``wait_s``."""
        SCREEN_PRIORITY.check(time.monotonic_ns())
        silent_s = self._stream.silent_s
        for item in self._stream.read(wait_s):
            self._end_silence(silent_s)
            self._keep(item)

    def _keep(self, item: Header | Frame) -> None:
        from gputop.model.frame import Header

        if isinstance(item, Header):
            self._take_header(item)
        elif self._file is not None and self._diagnosis is not None:
            self._first_ns = self._first_ns or item.t_ns
            if self._args.duration is not None and item.t_ns - self._first_ns > self._args.duration * 1e9:
                return  # after --duration by the frame's own time: it may have waited in the pipe
            had = self._diagnosis.problem
            self._diagnosis.judge_frame(item)
            if self._diagnosis.problem and not had:  # a reader will judge the recording itself
                notify(f"{clean(self._diagnosis.problem)}; recording goes on without the diagnosis")
            self._file.add(item, self._diagnosis.following.board)
            self._frames += 1
            if item.key:
                return_pages()

    def _take_header(self, header: Header) -> None:
        """A header comes when the stream begins, when a clock has jumped, and when another collector goes on."""
        if self._diagnosis is None:
            from gputop.session.stalled import AutoStacks, Unwatched

            # Stacks can be taken on this machine only.
            self._diagnosis = Unwatched(None if self._args.no_auto_stacks or self._args.host is not None else AutoStacks())
        self._diagnosis.following.restate(header)
        if self._file is None:
            self._file = self._create(header)
        else:
            self._file.restate(header)

    def _create(self, header: Header) -> Lasting:
        from gputop.recording.keep import Keeping
        from gputop.recording.lasting import Lasting
        from gputop.recording.writer import NO_LIMIT, Rotation

        host = re.sub(r"[^A-Za-z0-9._-]", "_", header.host) or "host"
        start = "" if self._args.keep else time.strftime("-%Y%m%d-%H%M%S")  # what is kept for longer than a start has one name
        path = f"gputop-{host}{start}.gputop" if self._args.output is None else self._args.output
        allowed, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        most = min(self._args.max_size or NO_LIMIT, NO_LIMIT if allowed == resource.RLIM_INFINITY else allowed)
        if self._args.keep:
            keep_ns = round(self._args.keep * 1e9)
            return Lasting(Keeping(path, header, max_bytes=most, keep_ns=keep_ns, begin=self._begin_account), notify)
        return Lasting(Rotation(path, header, most, self._args.max_files, self._begin_account), notify)

    def _begin_account(self) -> Tell | None:
        """Called when a file begins; the result gives its findings when the file ends."""
        from gputop.session.findings import Account

        diagnosis = self._diagnosis
        if diagnosis is None or diagnosis.problem:
            return None
        account = Account(diagnosis.following.engine, round(self._args.keep * 1e9) if self._args.keep else None)
        return lambda: b"" if diagnosis.problem else account.tell()

    def _over(self) -> bool:
        if self._args.duration is not None and time.monotonic() - self._started >= self._args.duration:
            return True
        return bool(self._stopped_by) if self._command is None else self._command.poll() is not None

    def _on_signal(self, number: int, _frame: object) -> None:
        """Stop, or pass the signal to the command, whose end stops the recorder."""
        if self._command is None:
            self._stopped_by = number
        elif number != signal.SIGINT or not _is_in_foreground(self._command.pid):
            self._command.send_signal(number)


def _is_in_foreground(pid: int) -> bool:
    """Whether the terminal's Ctrl-C reaches the process anyway: many programs take a second SIGINT as "quit without saving"."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgid(pid)
    except OSError:
        return False
