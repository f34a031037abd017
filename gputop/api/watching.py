"""`gputop.watch`: why this machine's GPUs wait, as objects, while a program runs.

A collector reads the machine and a companion judges it, each a process of its own; here a thread takes in a line a second.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import IO, TypeVar

import msgspec

from gputop.api.objects import CompanionLine, Explanation, Incident, Ledger, Snapshot
from gputop.findings.verdict import LOOKING, SEVERITIES, Verdict
from gputop.stream.child import collector_argv
from gputop.system.errors import UserError, start_thread, starting
from gputop.system.program import argv_of
from gputop.system.text import clean

ANSWER_S = 5.0  # s for the companion to answer: it looks at its questions five times a second
END_S = 3.0  # s for the companion to write its last lines and end, before SIGKILL
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.02, 60.0  # s, as of --interval
Answer = TypeVar("Answer", Explanation, Snapshot)


def watch(
    on_incident: Callable[[Incident], object] | None = None,
    *,
    severity: str = "low",
    interval: float = 0.1,
    gpus: Iterable[int] | None = None,
    ebpf: bool = True,
    host: str | None = None,
) -> Watching:
    """Watch this machine, or another one over ssh, within a ``with`` block.

    ``on_incident`` is called once for each incident that reaches ``severity`` (``info``, ``low``, ``medium``, ``high``), from a thread of
    its own; what it raises is logged. ``interval``: s between samples, 0.02 to 60. ``gpus``: indices, None for all. ``ebpf``: whether the
    probes are loaded where they can be. ``ValueError`` for a wrong argument.
    """
    if severity not in SEVERITIES:
        raise ValueError(f"severity is one of {', '.join(SEVERITIES)}, not {severity!r}")
    if not LEAST_INTERVAL_S <= interval <= MOST_INTERVAL_S:
        raise ValueError(f"interval is {LEAST_INTERVAL_S} to {MOST_INTERVAL_S:g} s, not {interval}")
    flags = ["--interval", repr(float(interval)), *["--no-ebpf"] * (not ebpf)]
    if gpus is not None:
        flags += ["--gpu", ",".join(str(int(one)) for one in gpus)]
    if host is None:
        return Watching(collector_argv(flags), on_incident, severity)
    from gputop.stream.reach import Target

    return Watching(Target(host).argv("collect", *flags), on_incident, severity)


class Watching:
    """A watch of this machine or another. It begins with ``with`` or `start`; its findings stay after `close`."""

    def __init__(self, collector: list[str], on_incident: Callable[[Incident], object] | None, severity: str) -> None:
        self._argv = argv_of("gputop.api.companion", *collector)
        self._on_incident = on_incident
        self._severities = SEVERITIES[SEVERITIES.index(severity) :]
        self._changed = threading.Condition()
        self._verdict, self._ledger, self._problem = Verdict(), Ledger(None, None, {}, [], None), ""
        self._incidents: dict[int, Incident] = {}
        self._reported: set[int] = set()
        self._answers: dict[type, object] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0  # of the process that started it: a fork has no thread
        self._is_closing = self._is_over = False

    def start(self) -> Watching:
        """Start the collector and its companion. `gputop.Error` if no process can be started."""
        if self._child is not None:
            raise UserError("this watch has been started already")
        self._pid = os.getpid()
        with starting():
            self._child = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
        assert self._child.stdout is not None
        self._thread = start_thread(self._listen, "gputop", self._child.stdout)
        if self._thread is None:
            self._child.kill()
            self._child.wait()
            raise UserError("no more threads are allowed here")
        return self

    def close(self) -> None:
        """Take the last findings, and end both processes. A fork of the program leaves them alone."""
        child = self._child
        if child is None or self._is_closing or os.getpid() != self._pid:
            return
        self._is_closing = True
        assert child.stdin is not None
        with suppress(OSError):  # it may have ended already
            child.stdin.write(b"end\n")
            child.stdin.flush()
        try:
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(END_S)
        finally:  # Ctrl-C, too
            with suppress(OSError):
                child.stdin.close()
            try:
                child.wait(END_S / 10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def __enter__(self) -> Watching:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def verdict(self) -> Verdict:
        """Verdict of the last seconds on the GPU that lost most; its ``symptom`` is ``looking`` until something can be judged."""
        return self._verdict

    @property
    def ledger(self) -> Ledger:
        """GPU seconds lost since the start, by cause; up to 3 s late, and whole after `close`."""
        return self._ledger

    @property
    def incidents(self) -> list[Incident]:
        """All incidents since the start, oldest first."""
        known = self._incidents
        return [known[number] for number in sorted(known)]

    @property
    def problem(self) -> str:
        """Why there are no readings now; empty while they come."""
        return self._problem

    def wait(self, timeout: float = 15.0) -> bool:
        """Wait for the first verdict, which takes about 3 s; whether there is one."""
        self._check_process()
        with self._changed:
            self._changed.wait_for(lambda: self._verdict.symptom != LOOKING or bool(self._is_over or self._problem), timeout)
        return self._verdict.symptom != LOOKING

    def explain(self, timeout: float = ANSWER_S) -> Explanation:
        """Explanation of the time since the start. `gputop.Error` if no answer comes."""
        return self._ask("explain", Explanation, timeout)

    def snapshot(self, timeout: float = ANSWER_S) -> Snapshot:
        """GPUs and processes now. `gputop.Error` if no answer comes."""
        return self._ask("snapshot", Snapshot, timeout)

    def _ask(self, question: str, kind: type[Answer], timeout: float) -> Answer:
        self._check_process()
        with self._changed:
            if self._is_closing and kind is Explanation and isinstance(last := self._answers.get(kind), kind):
                return last
            self._answers.pop(kind, None)
            assert self._child is not None
            try:
                if self._is_closing or self._child.stdin is None:
                    raise UserError("this watch is closed")
                self._child.stdin.write(question.encode() + b"\n")
                self._child.stdin.flush()
            except OSError:
                raise UserError(self._problem or "the companion has ended") from None
            self._changed.wait_for(lambda: kind in self._answers or self._is_over, timeout)
            answer = self._answers.get(kind)
        if not isinstance(answer, kind):
            raise UserError(self._problem or f"gputop did not answer within {timeout:g} s")
        return answer

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UserError("this watch has not been started, or belongs to another process")

    def _listen(self, pipe: IO[bytes]) -> None:
        """Take in the companion's lines until it ends."""
        words = ""  # of the interpreter, where the companion could not even begin
        with pipe:
            for line in pipe:
                told = _decoded(line)
                if told is not None:
                    self._take(told)
                else:
                    words = clean(line.decode(errors="replace").strip()) or words
        with self._changed:
            if not self._is_closing:
                self._problem = self._problem or f"the companion ended{f': {words}' if words else ''}"
            self._is_over = True
            self._changed.notify_all()

    def _take(self, told: CompanionLine) -> None:
        with self._changed:
            self._problem = told.problem if told.verdict is not None or told.problem else self._problem
            self._verdict = told.verdict or self._verdict
            self._ledger = told.ledger or self._ledger
            incidents = told.incidents if told.explanation is None else told.explanation.incidents
            self._incidents = self._incidents | {one.id: one for one in incidents}  # another dict: it is read without the lock
            for answer in (told.explanation, told.snapshot):
                if answer is not None:
                    self._answers[type(answer)] = answer
            if told.explanation is not None:
                self._ledger = told.explanation.ledger
            self._changed.notify_all()
        for one in incidents:
            self._report(one)

    def _report(self, one: Incident) -> None:
        if self._on_incident is None or one.id in self._reported or one.severity not in self._severities:
            return
        self._reported.add(one.id)
        try:
            self._on_incident(one)
        except Exception:
            logging.getLogger("gputop").exception("on_incident failed")


def _decoded(line: bytes) -> CompanionLine | None:
    try:
        return msgspec.json.decode(line, type=CompanionLine)
    except msgspec.MsgspecError:
        return None
