"""Watches for how long each job starves, and so whether `gputop watch --fail-on` fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gputop.findings.trouble import Trouble, is_fault, kind_of, unknown
from gputop.findings.verdict import SEVERITIES, Incident
from gputop.model.board import Board
from gputop.model.frame import Frame, Header
from gputop.stream.reader import Reader

if TYPE_CHECKING:
    from gputop.alerts.sender import Alerts
    from gputop.stream.command import Command
    from gputop.stream.stalled import Unwatched

STOP_S = 10.0  # s that --stop gives the command to end after SIGTERM, before SIGKILL; as docker stop does


class Watching(Reader):
    """Ends the loop once a job has starved and there is no command; ``command`` runs to its end, unless ``stops``."""

    def __init__(
        self, judging: Unwatched, alerts: Alerts, command: Command, starved: Callable[[Incident], None], *, severity: str | None,
        for_s: float, stops: bool = False,
    ) -> None:  # fmt: skip
        """``severity`` from which a job starves (None: it does not matter), ``for_s``: for how long; ``starved`` gets the incident then."""
        self.has_starved = self.has_stopped = False
        self._judging, self._alerts, self._command, self._report_starved = judging, alerts, command, starved
        self._starving = Starving(severity, round(for_s * 1e9)) if severity is not None else None
        self._stops = stops
        self._descendants = Descendants()
        self._boot_id = ""

    def begin(self, header: Header) -> None:
        if self._starving is not None and header.boot_id != self._boot_id:
            self._starving.begin()
        self._boot_id = header.boot_id

    def take(self, _frame: Frame) -> None:
        self.loop.problem = self.loop.problem or self._judging.problem  # without the diagnosis there is nothing to watch
        if not self._judging.has_fed or self._starving is None or self.has_starved:
            return
        found = self._starving.look([one for one in self._judging.engine.incidents if self.is_about(one.trainer_pid)])
        if found is not None:
            self.has_starved = True
            self._report_starved(found)
            self.has_stopped = self._stops and self._command.stop(STOP_S)

    def is_over(self) -> bool:
        return bool(self._judging.problem) or (self.has_starved and not self._command.pid)

    def is_about(self, trainer_pid: int | None) -> bool:
        """True if a trainer counts: with a command, only the trainers that it started."""
        return not self._command.pid or self._descendants.has(self._judging.board, trainer_pid, self._command.pid)

    def end(self) -> None:
        """Report the end of the incidents that still last, once the command has ended."""
        if self._command.pid:
            self._command.code()
            self._alerts.end(self._judging.following)


class Starving:
    """Measures for how long each job has had an incident of at least a severity; pure."""

    def __init__(self, severity: str, for_ns: int) -> None:
        self._bad = frozenset(SEVERITIES[SEVERITIES.index(severity) :])
        self._for_ns = for_ns
        self._since_ns: dict[int, int] = {}  # `_subject` of the incident -> its start

    def begin(self) -> None:
        """Forget all start times: after a reboot the monotonic clock starts over."""
        self._since_ns.clear()

    def look(self, incidents: list[Incident]) -> Incident | None:
        """The incident with which a job, or a lost GPU, has starved for the time, or None. A job starves on when its cause changes.

        The time ends when the cause was last seen: the incident itself lasts some seconds longer, for the cause may come back.
        """
        counted = [(_subject(one), one) for one in incidents if one.end_ns is None and self._counts(one)]
        open_ones = [(subject, one) for subject, one in counted if subject is not None]
        since = {subject: one.start_ns for subject, one in reversed(open_ones)}
        self._since_ns = {subject: min(start, self._since_ns.get(subject, start)) for subject, start in since.items()}
        starved = (one for subject, one in open_ones if one.last_ns - self._since_ns[subject] >= self._for_ns)
        return next(starved, None)

    def _counts(self, one: Incident) -> bool:
        return is_fault(one) and one.severity in self._bad and one.last_ns > 0


def _subject(one: Incident) -> int | None:
    """Pid of the trainer that an incident is about; a negative number for a lost GPU without a trainer; None if no job can starve by it."""
    kind = kind_of(one)
    match kind:
        case Trouble.LOST_GPU:
            return one.trainer_pid if one.trainer_pid is not None else -1 if one.gpu is None else -2 - one.gpu
        case Trouble.LOSS | Trouble.PAUSED | Trouble.GROWTH | Trouble.ORPHAN | Trouble.LINK | Trouble.SLOWER:
            return one.trainer_pid
        case _:
            return unknown(kind)


class Descendants:
    """Processes that a command started, also after their parents have ended."""

    def __init__(self) -> None:
        self._known: set[tuple[int, int]] = set()  # (pid, start in clock ticks)

    def has(self, board: Board, pid: int | None, ancestor_pid: int) -> bool:
        """True if the process is the command or comes from it. Ask while its parents live: afterwards the answer is remembered."""
        info = board.infos.get(pid or 0)
        if info is None:
            return any(known == pid for known, _ in self._known)  # it has ended
        key = info.pid, info.start_ticks
        line = {info.pid}  # the process, its parent, and so on
        while info is not None and ancestor_pid not in line and info.ppid not in line:
            line.add(info.ppid)
            info = board.infos.get(info.ppid)
        if ancestor_pid in line:
            self._known.add(key)
        return key in self._known
