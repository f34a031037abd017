"""The state of one stream, live or replayed: board, history, diagnosis, stacks and the last ten minutes.

One thread ingests the stream, the screen reads; both hold `Session.lock`. Nothing here draws.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from gputop.findings.sentence import plain
from gputop.findings.verdict import Ledger, ProcState, Requests, Verdict
from gputop.model.board import Board
from gputop.model.fields import STEPS
from gputop.model.frame import SECOND_NS, Frame, Header, Mark, Stack, TracedJob
from gputop.model.roles import Role, assign, children_of, program_name
from gputop.recording.ring import Ring
from gputop.stream.following import Followed, Following
from gputop.stream.history import WINDOW_NS, History
from gputop.stream.kept_traces import join
from gputop.stream.observers import OBSERVERS, ServerSeries, histogram
from gputop.stream.offer import Offer, Offering

if TYPE_CHECKING:
    from gputop.findings.verdict import Incident
    from gputop.stream.survey import IncidentSpan

STATE_WORDS = (
    "", "running", "runnable", "disk", "memory", "throttled", "blocked", "ahead", "stopped",
    "computing", "waiting-data", "waiting-gpu", "transfer", "sleeping", "dead",
)  # fmt: skip
"""State words (see `gputop.findings.verdict`) by their code in `History.states`."""
STARVING, INFERRED = 64, 128  # added to a code: the worker starves; the state is inferred, for its wait cannot be read
KEPT_EVERY_NS = 5 * SECOND_NS  # ns between two ledgers, and two verdicts of one cause, of 1 KB each; a choice
_CODES = {word: code for code, word in enumerate(STATE_WORDS)}
OneIncident = TypeVar("OneIncident", "Incident", "IncidentSpan")


class Session(Followed):
    """The state of one stream."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.following = Following(keeps_past=True)
        self.history = History(100_000_000)
        self.ring = Ring(Header())
        self.ledgers: deque[tuple[int, Ledger]] = deque()  # (t_ns, lost GPU time up to t_ns), every few seconds, back to `oldest_ns`
        self.verdicts: deque[tuple[int, Verdict]] = deque()  # (since when it was shown, verdict), back to `oldest_ns`
        self._last_kept: dict[tuple[object, ...], tuple[int, Verdict]] = {}  # (symptom, cause, GPU, trainer) -> newest in `verdicts`
        self.offers: deque[tuple[int, Offer | None]] = deque()  # (since when it was offered, fix), back to `oldest_ns`
        self._offering = Offering()
        self._servers = ServerSeries()
        self.marks: deque[Mark] = deque()
        self.stacks: deque[tuple[int, list[Stack]]] = deque(maxlen=64)  # (time of the frame, stacks in it)
        self._own_stacks: list[Stack] = []
        self._own_marks: list[str] = []  # their texts
        self._own_traces: list[TracedJob] = []

    @property
    def header(self) -> Header | None:
        """The newest header, with all known facts about its machine's clocks; None before the first."""
        return self.following.header

    def ingest(self, item: Header | Frame) -> None:
        """Take the next item of the stream."""
        with self.lock:
            if isinstance(item, Header):
                self._take_header(item)
            else:
                self._take_frame(item)

    def become(self, other: Session) -> None:
        """Take over the state of ``other``, which must not be used any more: a jump to another time replaces everything at once."""
        with self.lock:
            # The screen keeps drawn cells by their time and this number, which must differ between the two.
            other.history.trimmed += self.history.trimmed + self.history.ticks + 1
            self.__dict__.update({name: value for name, value in vars(other).items() if name != "lock"})

    def add_stacks(self, stacks: list[Stack]) -> None:
        """Add stacks that this process took; they join the next frame, and so the recording."""
        with self.lock:
            self._own_stacks += stacks

    def add_mark(self, text: str) -> None:
        """Add a marker to the next frame."""
        with self.lock:
            self._own_marks.append(text)

    def add_traces(self, traces: list[TracedJob]) -> None:
        """Add traces of torch.profiler that this process took; they join the next frame."""
        with self.lock:
            self._own_traces += traces

    def stacks_of(self, pids: Sequence[int] | None) -> list[tuple[int, list[Stack]]]:
        """(time, stacks of ``pids``) of each set in which the first of ``pids`` occurs; None: all sets, whole."""
        if pids is None:
            return list(self.stacks)
        found = ((at, [one for one in stacks if one.pid in pids]) for at, stacks in self.stacks)
        return [(at, stacks) for at, stacks in found if any(one.pid == pids[0] for one in stacks)]

    def stacks_at(self, t_ns: int | None, pids: Sequence[int] | None = None) -> tuple[int, list[Stack]] | None:
        """The last set of `stacks_of` that was taken up to ``t_ns`` (None is now); None if none was."""
        until = self.now_ns if t_ns is None else t_ns
        return max((one for one in self.stacks_of(pids) if one[0] <= until), key=_when, default=None)

    def _take_header(self, header: Header) -> None:
        """The past stays while the machine's boot is the same; see `Following.restate`."""
        is_first = self.header is None
        same_clock = not self.following.restate(header) and not is_first
        if same_clock:
            self.ring.restate(self.ring.header.dated(header))
        else:
            self.ring = Ring(header)
            self.verdicts.clear()
            self._last_kept.clear()
            self.offers.clear()
            self._offering = Offering(header.simulated)
            self.ledgers.clear()
            self.marks.clear()
            self.stacks.clear()
        if not same_clock or self.history.ticks == 0:
            self.history = History(header.interval_ns)

    def _take_frame(self, frame: Frame) -> None:
        self.history.tick(frame.t_ns)
        for observe in OBSERVERS:
            observe(self.board, frame, self.history)
        self.following.fold(frame)
        if self._own_stacks:
            frame.stacks, self._own_stacks = [*frame.stacks, *self._own_stacks], []
            frame.came_as(b"")
        if self._own_marks:
            frame.marks, self._own_marks = [*frame.marks, *(Mark(frame.t_ns, text) for text in self._own_marks)], []
            frame.came_as(b"")
        if self._own_traces:
            join(frame, self.board, self._own_traces)
            self._own_traces = []
        if frame.stacks:
            self.stacks.append((frame.t_ns, frame.stacks))
        self.ring.add(frame)
        self.marks.extend(frame.marks)
        while self.marks and self.marks[0].t_ns < self.oldest_ns:
            self.marks.popleft()
        since_ns = self.engine.fed_ns
        if self.following.judge(frame):
            self._keep_diagnosis(since_ns, frame.t_ns)

    def _keep_diagnosis(self, since_ns: int, t_ns: int) -> None:
        """Keep what the engine found at ``t_ns``: states since ``since_ns``, verdict and ledger."""
        for pid, state in self.engine.states.items():
            self.history.put_state(pid, code_of(state), since_ns)
        for pid, standing in self.engine.standing.items():
            if standing.job.step is not None and pid in self.board.infos:
                self.history.put(STEPS, pid, standing.job.step.per_s)
        self._servers.put(self.engine.servings, self.history)
        self.history.forget_ended(self.board.infos)
        self._keep_verdict(t_ns, self.engine.verdict)
        offer = self._offering.take(t_ns, self.engine.verdict, self.board, self.engine.incidents)
        if not self.offers or self.offers[-1][1] is not offer:
            self.offers.append((t_ns, offer))
        if not self.ledgers or t_ns - self.ledgers[-1][0] >= KEPT_EVERY_NS:
            self.ledgers.append((t_ns, self.engine.ledger))
        for kept in (self.verdicts, self.ledgers, self.offers):
            while len(kept) > 1 and kept[1][0] <= self.oldest_ns:
                kept.popleft()

    def _keep_verdict(self, t_ns: int, verdict: Verdict) -> None:
        """Keep what is shown from ``t_ns`` on. A verdict with new numbers alone replaces the one before it after `KEPT_EVERY_NS`; at once
        where they are a server's, which stand in its lanes and its row as well."""
        subject = verdict.symptom, verdict.cause, verdict.gpu, verdict.trainer_pid
        since_ns, kept = self._last_kept.get(subject, (0, verdict))
        if not 0 <= t_ns - since_ns < KEPT_EVERY_NS or _asked(verdict) != _asked(kept):
            kept = verdict if verdict.requests is None else replace(verdict, requests=plain(verdict.requests))  # 1 KB in place of 4
            self._last_kept[subject] = t_ns, kept
        if not self.verdicts or self.verdicts[-1][1] is not kept:
            self.verdicts.append((t_ns, kept))

    @property
    def now_ns(self) -> int:
        """Time of the newest frame."""
        return self.board.t_ns

    @property
    def oldest_ns(self) -> int:
        """The oldest moment with a board. Charts may reach further back: they outlast a restart of the collector."""
        times = self.history.times
        return max(times[0], self.ring.start_ns, self.now_ns - WINDOW_NS) if times else 0

    def board_at(self, t_ns: int | None) -> Board:
        """The board at ``t_ns``, empty before `oldest_ns`; the newest for None and for later times."""
        if t_ns is None or t_ns >= self.now_ns:
            return self.board
        return self.ring.board_at(t_ns)

    def verdict_at(self, t_ns: int | None) -> Verdict:
        """The verdict at ``t_ns``; None is now."""
        if t_ns is None or not self.verdicts:
            return self.engine.verdict
        i = bisect_right(self.verdicts, t_ns, key=_when)
        return self.verdicts[max(0, i - 1)][1]

    def offer_at(self, t_ns: int | None) -> Offer | None:
        """The fix that was offered at ``t_ns``; None is now."""
        i = len(self.offers) if t_ns is None else bisect_right(self.offers, t_ns, key=_when)
        return self.offers[max(0, i - 1)][1] if self.offers else None

    def shown_ns(self, incident: Incident | IncidentSpan) -> int:
        """Time when an incident's cause was first the verdict, which is later than its start; the start if that is not known."""
        start_ns, cause = incident.start_ns, incident.cause
        if start_ns < self.oldest_ns or self.verdict_at(start_ns).cause == cause:
            return start_ns
        last_ns = self.now_ns if incident.end_ns is None else incident.end_ns
        return next((t_ns for t_ns, verdict in self.verdicts if start_ns < t_ns <= last_ns and verdict.cause == cause), start_ns)

    def next_shown(self, incidents: Iterable[OneIncident], t_ns: int, direction: int) -> OneIncident | None:
        """The incident that was shown next after (``direction`` 1) or before (-1) a moment."""
        distances = [(direction * (self.shown_ns(one) - t_ns), one) for one in incidents]
        return min((one for one in distances if one[0] > 0), key=_when, default=(0, None))[1]

    def ledger_at(self, t_ns: int | None) -> Ledger:
        """Lost GPU time until ``t_ns``, up to `KEPT_EVERY_NS` earlier."""
        if t_ns is None or not self.ledgers:
            return self.engine.ledger
        i = bisect_right(self.ledgers, t_ns, key=_when)
        return self.ledgers[i - 1][1] if i else Ledger()

    def state_at(self, pid: int, t_ns: int | None) -> int:
        """The state code of a trainer or worker at ``t_ns``, 0 if none is known."""
        end = (self.now_ns if t_ns is None else t_ns) + 1
        return self.history.state_cell(pid, end - self.engine.pace_ns, end)

    def boards_around(self, t_ns: int | None, span_ns: int) -> tuple[Board, Board]:
        """(older, newer): two boards for rates, the newer one at ``t_ns`` (None is now), the older one about ``span_ns`` before.

        The older one is at most two seconds older. It may hold `Board.counters` alone.
        """
        if t_ns is not None and t_ns < self.now_ns:
            newer = self.board_at(t_ns)
            return self.board_at(max(self.oldest_ns, t_ns - span_ns)), newer
        return self.following.past.before(self.board, span_ns), self.board

    def roles_at(self, board: Board) -> dict[int, Role]:
        """The roles on a board: the engine's for the newest board; for a past one they are assigned again."""
        if board is self.board:
            return self.engine.roles
        return assign(board.infos, board.compute_pids, board.contexts)

    def histogram(self, field_id: str, older: Board, newer: Board) -> dict[int, int]:
        """`gputop.stream.observers.histogram` for the processes that have a role."""
        return histogram(field_id, older, newer, frozenset(self.roles_at(newer)))

    def feeders_at(self, board: Board) -> dict[int, Role]:
        """Members of a trainer's family outside its own tree, and programs that it started; both are helpers."""
        trainers = [pid for pid, role in self.engine.roles.items() if role.kind == "trainer"]
        own = {pid: board.infos[pid].ppid for pid in children_of(board.infos, trainers)}
        known = {pid: role for pid, role in self.engine.members.items() if pid in board.infos and role.trainer_pid in board.infos}
        return known | {pid: Role("helper", trainer, label=program_name(board.infos[pid])) for pid, trainer in own.items()}

    def unix_s(self, t_ns: int) -> float:
        """The wall clock at a moment of the stream."""
        return (self.header or Header()).unix_ns_of(t_ns) / 1e9


def _asked(verdict: Verdict) -> Requests | None:
    return None if verdict.requests is None else verdict.requests.numbers


def code_of(state: ProcState) -> int:
    """The code of a state, one byte."""
    return _CODES.get(state.state, 0) + STARVING * bool(state.starving) + INFERRED * state.inferred


def word_of(code: int) -> tuple[str, bool, bool]:
    """(word, starving, inferred) of a state code; the word is empty if the state is not known."""
    return STATE_WORDS[code & ~(STARVING | INFERRED)], bool(code & STARVING), bool(code & INFERRED)


def _when(entry: tuple[int, object]) -> int:
    return entry[0]
