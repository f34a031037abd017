"""Stalled processes: which they are, what they wait for, and their stacks, taken automatically when an incident begins."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from gputop.diagnosis import Engine
from gputop.findings.policy import FEED_EVERY_NS
from gputop.findings.verdict import Incident, ProcState, Verdict
from gputop.model.board import Board
from gputop.model.frame import Frame, Header, Mark, Stack, TracedJob
from gputop.model.roles import Role, hot
from gputop.model.stream import FLIGHT_SAYS, NCCL_SAYS
from gputop.stream.following import Followed, Following
from gputop.stream.kept_traces import join
from gputop.stream.reader import Reader
from gputop.system import crash
from gputop.system.errors import UserError, starting
from gputop.system.text import clean

if TYPE_CHECKING:
    from gputop.stream.autotrace import AutoTracing

MOST_PROCESSES = 17  # processes of an automatic set, about 15 ms of CPU each: the incident's trainer and its first workers
UNWATCHED_NS = 2 * FEED_EVERY_NS  # ns between judgements of a recorder: an incident takes a second to begin
COST_SHARE = 300  # the next set waits 300 times as long as the last one took: sets take at most 1/300 of the time
_HOUR_NS = 3_600_000_000_000
_FREE = frozenset({"running", "computing", "ahead"})
_NAMED = 4  # workers that a text names
_MEANING = {
    "runnable": "wanted a CPU and had none", "disk": "waited for block I/O", "memory": "reclaimed memory or faulted pages in",
    "throttled": "was throttled by its cgroup's CPU quota", "stopped": "was stopped", "transfer": "copied to or from the GPU",
    "waiting-gpu": "waited for the GPU",
}  # fmt: skip


def stalled_pids(roles: Mapping[int, Role], states: Mapping[int, ProcState]) -> list[int]:
    """Stalled workers and their trainers, trainers first; all trainers and workers if none is stalled."""
    ours = sorted(hot(roles), key=lambda pid: (roles[pid].kind != "trainer", roles[pid].trainer_pid or 0, roles[pid].index or 0))
    stuck = [pid for pid in ours if (state := states.get(pid)) and (state.starving or state.state not in _FREE)]
    with_trainers = {roles[pid].trainer_pid for pid in stuck} | set(stuck)
    return [pid for pid in ours if pid in with_trainers] if stuck else ours


def family(pid: int, roles: Mapping[int, Role]) -> list[int]:
    """Pids of a trainer and its workers; for another process its own."""
    role = roles.get(pid)
    if role is None or role.kind != "trainer":
        return [pid]
    return [pid, *(other for other in sorted(hot(roles)) if other != pid and roles[other].trainer_pid == pid)]


def waits(board: Board, roles: Mapping[int, Role], states: Mapping[int, ProcState], verdict: Verdict) -> dict[int, str]:
    """pid -> what its main thread waited for in the diagnosis's window, where that is known."""
    words = {pid: _words(pid, state, board, roles, states, verdict) for pid, state in states.items()}
    return {pid: text for pid, text in words.items() if text}


def _words(pid: int, state: ProcState, board: Board, roles: Mapping[int, Role], states: Mapping[int, ProcState], verdict: Verdict) -> str:
    share = 100 * state.fractions.get(state.state, 0.0)
    if state.state in _FREE:
        return "ahead: its queue is full" if state.state == "ahead" else ""
    if state.state == "waiting-data":
        return f"waits for data {share:.0f} % of the time{_late_names(pid, roles, states)}"
    if state.state == "blocked":
        mostly = f", mostly on: {max(state.waits, key=lambda kind: state.waits[kind])}" if state.waits else ""
        return f"blocked {share:.0f} % of the time{mostly}"
    text = f"{_MEANING.get(state.state, state.state)} {share:.0f} % of the time"
    return text + _behind(pid, board, verdict) if state.state == "runnable" else text


def _late_names(trainer_pid: int, roles: Mapping[int, Role], states: Mapping[int, ProcState]) -> str:
    late = [roles[pid] for pid, state in states.items() if state.starving and pid in roles and roles[pid].trainer_pid == trainer_pid]
    names = [role.label for role in sorted(late, key=lambda role: role.index or 0)]
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f", from {', '.join(names[:_NAMED])}{more}"


def _behind(pid: int, board: Board, verdict: Verdict) -> str:
    """The processes that had its CPUs, and its longest wait that the probes saw lately."""
    culprits = verdict.culprits if any(victim.pid == pid for victim in verdict.victims) else ()
    text = f", behind {', '.join(f'{culprit.name} ({culprit.pid})' for culprit in culprits[:3])}" if culprits else ""
    thread = board.threads.get(pid)
    longest_ms = thread.max_run_delay_ns / 1e6 if thread else 0.0
    return text + (f", longest {longest_ms:.0f} ms" if longest_ms >= 1 else "")


class AutoStacks:
    """The policy: decides for which incident to take a set of stacks now.

    Each incident gets one set, while it lasts; one that must wait gets it later, if it still lasts. Sets are at least ``least_gap_ns`` and
    `COST_SHARE` times their own length apart, and at most ``most_per_hour`` are taken in an hour.
    """

    def __init__(self, least_gap_ns: int = 30_000_000_000, most_per_hour: int = 60) -> None:
        self._least_gap_ns = least_gap_ns
        self._taken: deque[int] = deque(maxlen=most_per_hour)
        self._not_before_ns = 0
        self._done: set[tuple[int, int]] = set()  # (id, start_ns): ids start again when the collector is restarted

    def due(self, incidents: Iterable[Incident], now_ns: int) -> Incident | None:
        """The newest incident that is due at ``now_ns``; None if none is. Call `taken` once its set is taken."""
        is_hour_full = len(self._taken) == self._taken.maxlen and now_ns - self._taken[0] < _HOUR_NS
        if now_ns < self._not_before_ns or is_hour_full:
            return None
        waiting = [one for one in incidents if one.end_ns is None and one.start_ns <= now_ns and (one.id, one.start_ns) not in self._done]
        return max(waiting, key=lambda one: (one.start_ns, one.id), default=None)

    def taken(self, incident: Incident, now_ns: int, took_ns: int = 0) -> None:
        """Count a set for this incident that took ``took_ns``, also a failed one: it is not repeated."""
        self._done.add((incident.id, incident.start_ns))
        self._taken.append(now_ns)
        self._not_before_ns = now_ns + max(self._least_gap_ns, COST_SHARE * took_ns)


class AutoCapture:
    """Takes the sets that the policy asks for, in a thread of its own, and passes their stacks to ``deliver``. What NCCL and torch's flight
    recorder report of a job that hangs goes to ``say``, as texts of markers. ``dumps``: whether the recorder may be asked: the job then
    writes files."""

    def __init__(
        self, policy: AutoStacks, deliver: Callable[[list[Stack]], None], say: Callable[[str], None] | None = None, dumps: bool = True
    ) -> None:
        self._dumps = dumps
        self._policy = policy
        self._deliver = deliver
        self._say = say
        self._taking: threading.Thread | None = None

    def step(self, board: Board, engine: Engine) -> bool:
        """Start taking a set if one is due; returns whether it did. Call this a few times a second."""
        if self._taking is not None and self._taking.is_alive():
            return False
        incident = self._policy.due(engine.incidents, board.t_ns)
        if incident is None:
            return False
        pids = _of(incident, engine)[:MOST_PROCESSES]
        words = waits(board, engine.roles, engine.states, engine.verdict)
        standing = engine.standing.get(incident.trainer_pid or 0)
        hang = standing.job.hang if standing is not None else None
        ranks = [job.trainer.pid for job in hang.family] if hang is not None else None
        taking = threading.Thread(target=self._take, args=(incident, board.t_ns, pids, words, ranks), daemon=True, name="autostacks")
        try:
            with starting():
                taking.start()
        except UserError:
            return False  # the next call tries again
        self._taking = taking
        return True

    def _take(self, incident: Incident, now_ns: int, pids: list[int], words: dict[int, str], ranks: list[int] | None) -> None:
        """``ranks``: main processes of the job if it hangs."""
        from gputop.stacks import nccl
        from gputop.stacks.capture import capture
        from gputop.stacks.group import is_helper

        try:
            taken = capture(pids, waits=words, incident=str(incident.id))
        except Exception as error:  # noqa: BLE001 - no stacks this time; the screen and the recording go on
            crash.reason(error)
            self._policy.taken(incident, now_ns)
            return
        self._policy.taken(incident, now_ns, taken.took_ns)
        self._deliver([stack for stack in taken.stacks if not is_helper(stack)])
        if ranks is None or self._say is None:
            return
        if (report := nccl.ask(pids)) is not None and not report.problem:
            self._say(f"{NCCL_SAYS}{report.words}")
        if self._dumps:
            from gputop.traces.pipes import answers

            for answer in answers(ranks):
                self._say(f"{FLIGHT_SAYS}{answer}")


def _of(incident: Incident, engine: Engine) -> list[int]:
    """The pids to take stacks of: the incident's trainer with its workers; all stalled processes if it has no trainer."""
    if incident.trainer_pid is not None:
        return family(incident.trainer_pid, engine.roles)
    return stalled_pids(engine.roles, engine.states)


class Unwatched(Reader, Followed):
    """The diagnosis of a stream without a screen, for the readers behind it; it adds automatic stacks to the frames."""

    def __init__(
        self, policy: AutoStacks | None, *, every_ns: int = UNWATCHED_NS, notify: Callable[[str], None] = lambda _: None, goes_on: str = "",
        traces: Callable[[Callable[[list[TracedJob]], None]], AutoTracing] | None = None,
    ) -> None:  # fmt: skip
        """``policy`` None: no stacks are taken. ``every_ns``: time between two feeds of the engine. ``notify`` gets the line that the
        diagnosis has ended by a bug; ``goes_on``: its end, what goes on. ``traces`` makes what takes traces by itself, given where they go;
        None: none are taken."""
        self.following = Following(every_ns=every_ns)
        self.problem = ""  # the error that ended the diagnosis; empty if there was none
        self.has_fed = False  # whether the engine was fed with the newest frame
        self.lock = threading.Lock()  # held while an item is taken in; whoever reads in another thread holds it
        self._notify, self._goes_on = notify, goes_on
        self._adding = threading.Lock()
        self._ready: list[Stack] = []
        self._said: list[str] = []  # texts of markers
        self._traced: list[TracedJob] = []
        self._auto = AutoCapture(policy, self._keep, self._keep_text) if policy is not None else None
        self._tracing = traces(self._keep_traces) if traces is not None else None

    def begin(self, header: Header) -> None:
        with self.lock:
            self.following.restate(header)

    def take(self, frame: Frame) -> None:
        """Judge the stream's next frame, and add the stacks that were taken since the last one, before it is written."""
        with self.lock:
            self.following.fold(frame)
            self.has_fed = not self.problem and self._judge(frame)
        with self._adding:
            if self._ready or self._said:
                frame.came_as(b"")
            if self._ready:
                frame.stacks, self._ready = [*frame.stacks, *self._ready], []
            if self._said:
                frame.marks, self._said = [*frame.marks, *(Mark(frame.t_ns, text) for text in self._said)], []
            if self._traced:
                join(frame, self.board, self._traced)
                self._traced = []

    def _judge(self, frame: Frame) -> bool:
        try:
            if not self.following.judge(frame):
                return False
            if self._auto is not None:
                self._auto.step(self.board, self.engine)
            if self._tracing is not None:
                self._tracing.step(self.board, self.engine)
        except Exception as error:  # noqa: BLE001 - a bug of the diagnosis costs what it would have found, not what is recorded or measured
            self.problem = crash.reason(error)
            self._notify(f"{clean(self.problem)}; {self._goes_on}")
            return False
        return True

    def _keep(self, stacks: list[Stack]) -> None:
        with self._adding:
            self._ready += stacks

    def _keep_traces(self, traces: list[TracedJob]) -> None:
        with self._adding:
            self._traced += traces

    def _keep_text(self, text: str) -> None:
        with self._adding:
            self._said.append(text)
