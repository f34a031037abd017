"""The companion process of a program that calls `gputop.watch`: it follows a collector, so that the program itself judges nothing.

Its arguments are the collector's command. Each second it writes a line of JSON (`gputop.api.objects.CompanionLine`). It answers the lines
``snapshot``, ``explain`` and ``end`` on standard input, and ends with its parent.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Any

import msgspec

from gputop.findings.explanation import booked, episode
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.model.ranges import fitted
from gputop.stream.child import ChildStream
from gputop.stream.reader import Loop, Reader
from gputop.stream.restarts import LastingStream
from gputop.stream.snapshot import Snapshots
from gputop.system import crash
from gputop.system.errors import UserError
from gputop.system.program import calm_garbage_collection

END = b"end"


class Companion(Reader):
    """Follows a stream for the process ``parent``, writes to ``output``, reads questions from ``questions`` (descriptors)."""

    def __init__(self, questions: int, output: int, parent: int) -> None:
        self._questions, self._output, self._parent = questions, output, parent
        self._snapshots = Snapshots()
        self._line = b""
        self._sent_ns = 0
        self._sent_problem = ""
        self._ended: set[int] = set()  # incidents with a reported end
        self._has_asked_end = False

    def begin(self, header: Header) -> None:
        self._snapshots.take(header)

    def take(self, frame: Frame) -> None:
        self._snapshots.take(frame)

    def rest(self) -> float:
        """Write what is new, and answer. What waits is newer, so this comes after it has been taken."""
        engine, trouble = self._snapshots.following.engine, self.loop.stream.trouble
        if engine.fed_ns - self._sent_ns >= SECOND_NS or trouble != self._sent_problem:
            self._send_news()
        if select.select([self._questions], [], [], 0.0)[0]:
            self._read_questions()
        return 0.0

    def is_over(self) -> bool:
        """True if the parent asked for the end, or has ended."""
        return self._has_asked_end or os.getppid() != self._parent

    def _send_news(self) -> None:
        engine, header = self._snapshots.following.engine, self._snapshots.following.board.header
        self._sent_ns, self._sent_problem = engine.fed_ns, self.loop.stream.trouble
        news = [one for one in engine.incidents if one.id not in self._ended]
        self._ended.update(one.id for one in news if one.end_ns is not None)
        self._say(
            verdict=fitted(engine.verdict), ledger=booked(engine.ledger), incidents=[episode(one, header) for one in news],
            problem=self.loop.stream.trouble,
        )  # fmt: skip

    def _read_questions(self) -> None:
        data = os.read(self._questions, 4096)
        self._has_asked_end = not data  # the parent closed it
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._answer(line)

    def _answer(self, line: bytes) -> None:
        following = self._snapshots.following
        if following.board.seq >= 0:
            following.engine.feed(following.board)
        if line == b"snapshot":
            self._say(snapshot=self._snapshots.now())
            return
        self._send_news()
        self._say(explanation=following.engine.explain())
        self._has_asked_end = line == END

    def _say(self, **told: Any) -> None:
        rest = memoryview(msgspec.json.encode(told, enc_hook=str) + b"\n")
        while rest:
            rest = rest[os.write(self._output, rest) :]


def run(collector: list[str]) -> int:
    """Follow this collector. Returns the exit code."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the parent, which ends this
    calm_garbage_collection()
    try:
        stream = LastingStream(ChildStream(collector), lambda: ChildStream(collector))
        with Loop(stream, Companion(sys.stdin.fileno(), sys.stdout.fileno(), parent), drain_s=0.0) as loop:
            loop.run()
    except BrokenPipeError:  # the parent is gone
        return 0
    except UserError as error:
        os.write(sys.stdout.fileno(), msgspec.json.encode({"problem": str(error)}) + b"\n")
        return error.code
    except Exception as error:  # noqa: BLE001 - a bug: its line is for the parent, the traceback for errors.log
        os.write(sys.stdout.fileno(), msgspec.json.encode({"problem": crash.log(error)}) + b"\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
