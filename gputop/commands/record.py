"""Record until Ctrl-C, for a time, or while a command runs; the command's exit code is passed on. With sudo only the probes are root's;
file and command are the user's.
"""

from __future__ import annotations

import argparse
import re
import resource
import shlex
import time
from typing import TYPE_CHECKING

from gputop.commands.attending import Attending, command_of, lasting_stream
from gputop.commands.options import (
    ALERT_EVERY_S,
    RECORDER,
    add_alerts,
    add_sampling,
    alerts_of,
    duration,
    leave_root,
    number,
    refuse_alerts,
)
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.program import return_freed_memory
from gputop.system.text import clean, counted

if TYPE_CHECKING:
    from gputop.alerts.sender import Alerts
    from gputop.model.frame import Frame, Header
    from gputop.recording.lasting import Lasting
    from gputop.recording.writer import Tell
    from gputop.stream.restarts import LastingStream
    from gputop.stream.stalled import Unwatched

EXAMPLES = """examples:
  gputop record                                  until Ctrl-C, to gputop-HOST-DATE-TIME.gputop
  gputop record -o run.gputop -- python train.py
  gputop record --max-size 100M --max-files 3    the last 200 MB or more, in files of 100 MB
  gputop record --host 'node[01-16]' -o run      a file a host; gputop replay run shows them together
  gputop record --keep 30d --max-size 1G         a month: ticks around incidents and markers, seconds of days, minutes of all
with --keep and -o node.gputop each start makes a file (node.gputop, node.2.gputop …); older ones are thinned with it, and go when too old
a growing recording can be opened; recording pauses while less than 15% of the disk (4 GB at most) is free
"""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LEAST_BYTES, LEAST_KEPT_BYTES = 1 << 20, 32 << 20  # of --max-size; with --keep
NO_READING = "the collector gave no reading"


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
    parser.add_argument("--keep", type=duration("10m"), metavar="TIME", help="with --max-size: hold 30d, 12h in all, older is coarser")
    parser.add_argument("--host", metavar="[USER@]NODE", help="another machine over ssh, or several: node01-16")
    parser.add_argument("--hosts", metavar="FILE", help="record the machines that a file lists, one a line")
    parser.add_argument("--no-auto-stacks", action="store_true", help="do not take stacks when an incident begins")
    add_alerts(parser)
    add_sampling(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="record while this runs")


def run(args: argparse.Namespace) -> int:
    """Record. Returns the command's exit code, if there is a command (128 + number after a signal)."""
    if args.max_files and not args.max_size:
        raise UserError("--max-files needs --max-size", code=2)
    if args.keep and (args.max_files or (args.max_size or 0) < LEAST_KEPT_BYTES):
        raise UserError("--keep needs --max-size of at least 32M, and no --max-files", code=2)
    argv = command_of(args)
    if args.output == "-":
        raise UserError("a recording is a file: for standard output there is gputop collect", code=2)
    if args.host is not None or args.hosts is not None:
        from gputop.commands import record_fleet
        from gputop.fleet.targets import by_names

        chosen = by_names(args.host, args.hosts)
        if len(chosen) > 1 or args.hosts is not None:
            refuse_alerts(args)
            return record_fleet.run(args, chosen)
    alerts = alerts_of(args, notify)
    return_freed_memory()
    stream = lasting_stream(args)
    run = _RecordRun(args, stream, alerts)
    try:
        leave_root(*RECORDER, "gputop.alerts")  # the file and the command belong to the user
        run.begin()
        if argv:
            run.start(argv)
        run.run()
    finally:
        stream.close()
        run.close()
    return run.exit_code()


class _RecordRun(Attending):
    """One run of the recorder."""

    done = "recorded"

    def __init__(self, args: argparse.Namespace, stream: LastingStream, alerts: Alerts | None) -> None:
        super().__init__(stream, args.interval, args.duration)
        self._args = args
        self._file: Lasting | None = None
        self._diagnosis: Unwatched | None = None
        self._alerts = alerts

    def start(self, argv: list[str]) -> None:
        """Start the collector, as `Attending.start`. If that fails, discard the new file: its name is free for the next try."""
        try:
            super().start(argv)
        except UserError:
            file, self._file = self._file, None
            if file is not None:
                file.rotation.discard()
            raise

    def rest_s(self) -> float:
        """Seconds until the next block is nearly full; with alerts at most until the next feed."""
        full_s = self._file.rotation.full_in_ns / 1e9 if self._file is not None else 0.0
        return full_s if self._alerts is None else min(full_s, ALERT_EVERY_S)

    def silence_over(self, silent_s: float) -> None:
        if self._file is not None:
            self._file.miss(silent_s, NO_READING)
        super().silence_over(silent_s)

    def close(self) -> None:
        """Complete the file, and print where it is and what is missing."""
        if self._alerts is not None:
            self._alerts.close()
        if self._file is None:
            return
        if why := self.problem or self.stream.trouble or (NO_READING if self.silent_s else ""):
            self._file.miss(self.stream.silent_s, why)
        self._file.close()
        rotation, missing = self._file.rotation, self._file.missing
        runs_on = "; the command runs on" if self.command is not None and self.command.poll() is None else ""
        if rotation.frames or not self.problem:
            told = f"{counted(rotation.frames, 'frame')} in {rotation.summary()}{f'; {missing}' if missing else ''}"
            shown = f": gputop explain {shlex.quote(rotation.writer.path)}" if rotation.frames else ""
            notify(f"{told}{shown}{runs_on}")
        if rotation.problem and not missing and not self.problem:
            notify(rotation.problem)
        self.problem = self.problem or rotation.problem or missing

    def exit_code(self) -> int:
        """The command's exit code; without a command 1 if the recording is incomplete."""
        return self.command_code() if self.command is not None else int(bool(self.problem))

    def take_frame(self, frame: Frame) -> None:
        if self._file is None or self._diagnosis is None:
            return
        had = self._diagnosis.problem
        self._diagnosis.judge_frame(frame)
        if self._diagnosis.problem and not had:  # a reader will judge the recording itself
            notify(f"{clean(self._diagnosis.problem)}; recording goes on without the diagnosis")
        if self._alerts is not None:
            self._alerts.look(self._diagnosis.following)
        self._file.add(frame, self._diagnosis.following.board)

    def take_header(self, header: Header) -> None:
        if self._diagnosis is None:
            from gputop.stream.stalled import AutoStacks, Unwatched

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
        from gputop.stream.kept import FindingsRecorder

        diagnosis = self._diagnosis
        if diagnosis is None or diagnosis.problem:
            return None
        account = FindingsRecorder(diagnosis.following.engine, round(self._args.keep * 1e9) if self._args.keep else None)
        return lambda: b"" if diagnosis.problem else account.tell()
