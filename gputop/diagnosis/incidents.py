"""Incidents: one per episode of a cause at a trainer, with hysteresis at both ends."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from gputop.diagnosis.facts.takers import born_ns, tree_ns
from gputop.diagnosis.graph.job import Hang
from gputop.diagnosis.symptoms import Standing, promised
from gputop.findings import policy
from gputop.findings.policy import TICK_SLACK_NS, WINDOW_NS
from gputop.findings.sentence import filled
from gputop.findings.verdict import Fix, Incident, Verdict, of_gpus, speedup_max
from gputop.model.board import Board
from gputop.model.frame import ProcSample

BEGIN_NS = policy.STEADY_NS - TICK_SLACK_NS  # a cause must stand this long before it is an incident; it is then dated back to when it began
TELL_NS = 2_000_000_000 - TICK_SLACK_NS  # ns between two updates of victims and culprits, unless the loss gets worse
END_NS = policy.AWAY_NS - TICK_SLACK_NS


class _CulpritAccount(Struct):
    """A culprit's CPU time before the episode, and its CPUs now."""

    start_ticks: int
    base_ns: int
    cores: float = 0.0
    seen: tuple[int, int] = 0, 0  # (t_ns, CPU time) of its latest reading
    spawns: bool = False  # CPU time of programs that it starts is counted as its own

    def note(self, t_ns: int, cpu_ns: int) -> None:
        """Take in a reading; from the second on ``cores`` is the latest rate, which may be lower than over the window that blamed the
        culprit."""
        before_ns, before_cpu_ns = self.seen
        if before_ns < t_ns:
            self.seen = t_ns, cpu_ns
            self.cores = (cpu_ns - before_cpu_ns) / (t_ns - before_ns) if before_ns else self.cores


class _StandingCause(Struct):
    """A cause that stands now, with or without an incident yet."""

    first_ns: int
    last_ns: int
    lost_s: float = 0.0
    whole_s: float = 0.0  # GPU seconds booked with the cause, lost or not
    regain_s: float = 0.0  # GPU seconds lost, with a shared GPU's divided among its trainers
    since_whole_s: float = 0.0  # GPU seconds since it began (the first ones booked are from shortly before)
    since_lost_s: float = 0.0  # part of ``since_whole_s`` lost to the cause or unexplained
    steady_whole_s: float = 0.0  # the same two without the window in which it began and the last one, in which it may have ended
    steady_lost_s: float = 0.0
    latest: tuple[tuple[int, float, float], ...] = ()  # (t_ns, whole, lost) of that last window
    loudest: float = 0.0
    why: str = ""  # the words for the loudest moment
    told_ns: int = 0  # when victims and culprits were last updated
    culpable: float = 0.0  # maximum of `Standing.culpable` so far, for the last window still has what has ended
    fixes: tuple[Fix, ...] = ()  # of the loudest moment
    familiar: bool = True  # see `Standing.familiar`
    hangs: bool = False  # nothing moves any more: see `gputop.diagnosis.hangs`
    incident: Incident | None = None
    gpus: set[str] = field(default_factory=set)  # GPUs that lost the seconds, a straggler's peers' included
    accounts: dict[int, _CulpritAccount] = field(default_factory=dict)  # by pid of the culprit

    def count(self, one: Standing) -> None:
        """Add the GPU seconds that were booked with a standing."""
        share = one.shares.get(one.cause, 1.0)
        self.lost_s, self.whole_s = self.lost_s + (one.lost_s or 0.0) * share, self.whole_s + one.whole_s
        for t_ns, whole_s, lost_s in one.booked:
            self.regain_s += lost_s * share
            if t_ns > self.first_ns:
                self.since_whole_s += whole_s
                self.since_lost_s += lost_s * min(1.0, share + one.unexplained)
            if t_ns > self.first_ns + policy.WINDOW_NS:
                self.latest += ((t_ns, whole_s, lost_s * min(1.0, share + one.unexplained)),)
        past = [one for one in self.latest if one[0] <= self.latest[-1][0] - policy.WINDOW_NS]
        self.steady_whole_s += sum(whole for _, whole, _ in past)
        self.steady_lost_s += sum(lost for _, _, lost in past)
        self.latest = self.latest[len(past) :]

    @property
    def speedup_max(self) -> float | None:
        """Upper bound of the speed-up without the cause. Its onset and the recovery are not its state: batches that were prepared before
        keep the GPU at work for a while."""
        bounds = speedup_max(self.since_lost_s, self.since_whole_s), speedup_max(self.steady_lost_s, self.steady_whole_s)
        if None in bounds and self.steady_whole_s > 0.0:
            return None
        return max((bound for bound in bounds if bound is not None), default=None)

    def write_cost(self, culpable: float) -> None:
        """Write the cost of the whole episode so far to its incident."""
        incident = self.incident
        if incident is None:
            return
        self.culpable = max(self.culpable, culpable)
        incident.lost_s = self.lost_s
        incident.severity = "high" if self.hangs else severity(self.lost_s, (self.last_ns - self.first_ns) / 1e9, self.culpable)
        incident.fixes = list(promised(self.fixes, self.familiar, incident.severity))
        if self.whole_s:
            incident.headline = filled("{} lost {:.1f} of {:.1f} s: {}", of_gpus(self.gpus), self.lost_s, self.whole_s, self.why)
        if self.whole_s and incident.cause != "unexplained":
            incident.regain_gpu_s, incident.speedup_max = self.regain_s, self.speedup_max


def begun(
    cause: str, start_ns: int, *, symptom: str = "healthy", severity: str = "low", confidence: float = 1.0,
    trainer_pid: int | None = None, gpu: int | None = None,
) -> Incident:  # fmt: skip
    """An incident that lasts, without words, numbers and processes yet."""
    return Incident(
        id=0, start_ns=start_ns, end_ns=None, symptom=symptom, cause=cause, severity=severity, confidence=confidence,
        trainer_pid=trainer_pid, gpu=gpu, lost_s=0.0, headline="", detail="", victims=[], culprits=[], evidence=[], fixes=[],
    )  # fmt: skip


class Incidents:
    """Keeps every incident of a stream, oldest first."""

    def __init__(self) -> None:
        self.all: list[Incident] = []
        self._episodes: dict[tuple[int | None, str], _StandingCause] = {}
        self._begun = 0

    def note(self, board: Board, seconds: float, standing: list[Standing]) -> None:
        """Take in the present standings, ``seconds`` after the last call; end incidents without their cause for too long."""
        for one in standing:
            if one.troubled:
                self._extend(board, seconds, one)
        for key, episode in list(self._episodes.items()):
            if board.t_ns - episode.last_ns >= END_NS:
                del self._episodes[key]
                if episode.incident is not None:
                    episode.incident.end_ns = episode.last_ns
            elif episode.incident is not None and episode.last_ns == board.t_ns:
                _count_culprits(episode, board)

    def count(self, booked: Iterable[Standing]) -> None:
        """Add seconds of jobs that have ended, which are booked only now, by their last standing."""
        for one in booked:
            episode = self._episodes.get((one.trainer_pid, one.cause))
            if episode is not None:
                episode.count(one)
                episode.write_cost(one.culpable)

    def settled(self, unbooked: Iterable[Standing]) -> list[Incident]:
        """All incidents; lasting ones include the ``unbooked`` seconds, which are in each job's last standing."""
        lasting: dict[int, _StandingCause] = {}
        for one in unbooked:
            episode = self._episodes.get((one.trainer_pid, one.cause))
            if episode is not None and episode.incident is not None:
                copied = lasting.setdefault(episode.incident.id, replace(episode, incident=replace(episode.incident)))
                copied.count(one)
                copied.write_cost(one.culpable)
        return [episode.incident if (episode := lasting.get(one.id)) and episode.incident else one for one in self.all]

    def _extend(self, board: Board, seconds: float, one: Standing) -> None:
        key = (one.trainer_pid, one.cause)
        episode = self._episodes.get(key)
        if episode is None:
            episode = self._episodes[key] = _StandingCause(board.t_ns - int(seconds * 1e9), board.t_ns)
        episode.count(one)
        if one.hangs and one.job.hang is not None:
            self._take_over(episode, one.job.hang)
        episode.last_ns = board.t_ns
        episode.gpus.update(gpu.name for gpu in one.job.gpus)
        needed_ns = END_NS if one.cause == "unexplained" else BEGIN_NS
        if episode.incident is None and board.t_ns - episode.first_ns >= needed_ns and _hurts(episode, one):
            episode.incident = self._begin(episode, one.verdict)
        if episode.incident is not None:
            episode.incident.last_ns = board.t_ns
            _update(episode, episode.incident, one, board)

    def append(self, incident: Incident) -> None:
        """Add and number an incident that is no episode of lost time."""
        self._begun += 1
        incident.id = self._begun
        self.all.append(incident)

    def _take_over(self, episode: _StandingCause, hang: Hang) -> None:
        """Give the hang the episodes of its first seconds, which looked like a pause or a small job."""
        episode.hangs, episode.first_ns = True, min(episode.first_ns, hang.since_ns)
        pids = {job.trainer.pid for job in hang.family}
        for key, other in list(self._episodes.items()):
            if key[0] in pids and other is not episode and other.first_ns >= hang.since_ns - WINDOW_NS - BEGIN_NS:
                del self._episodes[key]
                episode.lost_s, episode.whole_s = episode.lost_s + other.lost_s, episode.whole_s + other.whole_s
                episode.regain_s += other.regain_s
                self.all = [incident for incident in self.all if incident is not other.incident]

    def _begin(self, episode: _StandingCause, verdict: Verdict) -> Incident:
        incident = begun(
            verdict.cause, episode.first_ns, symptom=verdict.symptom, severity="info", confidence=0.0, trainer_pid=verdict.trainer_pid,
            gpu=verdict.gpu,
        )  # fmt: skip
        incident.headline, incident.detail = verdict.headline, verdict.detail
        self.append(incident)
        return incident


def _hurts(episode: _StandingCause, one: Standing) -> bool:
    """True if the GPU loses time now, not only in a part of the window that has passed."""
    seconds = (episode.last_ns - episode.first_ns) / 1e9
    return episode.hangs or one.lost_s is None or episode.lost_s >= max(policy.BEGIN_LOST_S, policy.TENTH * seconds)


def severity(lost_s: float, seconds: float, culpable: float) -> str:
    """Severity from GPU seconds lost and their share of the incident (a long slight loss stays low), counted up to ``culpable``."""
    share = min(culpable, lost_s / seconds) if seconds > 0.0 else 0.0
    if culpable <= 0.0:
        return "info"
    if lost_s >= policy.HIGH_S and share >= policy.HALF:
        return "high"
    return "medium" if lost_s >= policy.MEDIUM_S and share >= policy.QUARTER else "low"


def _update(episode: _StandingCause, incident: Incident, one: Standing, board: Board) -> None:
    """Update the incident: text, evidence and fixes from the latest of its loud moments; victims and culprits are collected over the
    episode."""
    loudness = one.clearness * (one.lost_pct or 1.0)
    if loudness > episode.loudest or board.t_ns - episode.told_ns >= TELL_NS:
        episode.told_ns = board.t_ns
        if loudness >= policy.NEARLY_ALL * episode.loudest and _is_typical(incident, one.verdict):
            episode.why, episode.fixes, episode.familiar = one.verdict.why, one.verdict.fixes, one.familiar
            _reword(incident, one.verdict)
        episode.loudest = max(loudness, policy.NEARLY_ALL * episode.loudest)
        known = {victim.pid for victim in incident.victims}
        incident.victims += [victim for victim in one.verdict.victims if victim.pid not in known]
        _add_culprits(episode, incident, one, board)
    episode.write_cost(one.culpable)


def _is_typical(incident: Incident, verdict: Verdict) -> bool:
    """True if the culprit that the verdict names first is no minor one of the episode so far. A process that ran for a moment may have
    taken most of a window; the fixes of that window would begin with it. A new culprit must have taken as much as any other in all."""
    took = {one.pid: one.cpu_s for one in incident.culprits if one.cpu_s is not None}
    first = next(iter(verdict.culprits), None)
    if first is None or first.cpu_s is None or not took:
        return True
    most = max(took.values())
    return took[first.pid] >= policy.HALF * most if first.pid in took else first.cpu_s >= most


def _reword(incident: Incident, verdict: Verdict) -> None:
    incident.headline, incident.detail, incident.confidence = verdict.headline, verdict.detail, verdict.confidence
    incident.evidence, incident.symptom = list(verdict.evidence), verdict.symptom
    incident.path, incident.near, incident.next_test = verdict.path, verdict.near, verdict.next_test
    incident.requests = verdict.requests


def _add_culprits(episode: _StandingCause, incident: Incident, one: Standing, board: Board) -> None:
    """Add new culprits. A culprit's CPU time counts from the window that first blamed it, or from when it began to run shortly before; if
    born then, in full."""
    before = {taker.pid: taker.before_ns for taker in one.facts.takers if not taker.spawns}
    spawners = {taker.pid: taker.started for taker in one.facts.takers if taker.spawns}
    started = {pid for culprit in one.verdict.culprits for pid in spawners.get(culprit.pid, ())}
    incident.culprits = [known for known in incident.culprits if known.pid not in started]
    for culprit in one.verdict.culprits:
        sample, spawns = board.procs.get(culprit.pid), culprit.pid in spawners
        if sample is None:
            continue
        account = episode.accounts.get(culprit.pid)
        if account is None or (spawns and not account.spawns):
            taken_ns = int((culprit.cpu_s or 0.0) * 1e9)
            base_ns = before.get(culprit.pid, _taken_ns(board, sample, spawns) - taken_ns)
            is_new = born_ns(sample, board) >= max(episode.first_ns - policy.LEAD_NS, board.header.t_ns)
            cores = taken_ns / 1e9 / max(0.1, one.facts.seconds)
            episode.accounts[culprit.pid] = _CulpritAccount(sample.start_ticks, 0 if is_new else base_ns, cores, spawns=spawns)
        if account is None:
            incident.culprits.append(culprit)


def _count_culprits(episode: _StandingCause, board: Board) -> None:
    """Update the culprits' CPU seconds since the episode began, from their own counters, and sort them, the biggest taker first. Strangers
    are read seldom, so their latest rate is used up to now."""
    incident = episode.incident
    for i, culprit in enumerate(incident.culprits if incident is not None else ()):
        sample, account = board.procs.get(culprit.pid), episode.accounts[culprit.pid]
        if incident is not None and sample is not None and sample.start_ticks == account.start_ticks:
            cpu_ns = _taken_ns(board, sample, account.spawns)
            account.note(sample.t_ns, cpu_ns)
            since_ns = min(policy.STALE_NS, max(0, board.t_ns - sample.t_ns))
            taken_ns = cpu_ns - account.base_ns + account.cores * since_ns
            least_s = culprit.cpu_s or 0.0 if account.spawns else 0.0  # init may reap its children, but their time counts nevertheless
            incident.culprits[i] = replace(culprit, cpu_s=max(least_s, round(taken_ns / 1e9, 2)))
    if incident is not None:
        incident.culprits.sort(key=lambda one: -(one.cpu_s or 0.0))


def _taken_ns(board: Board, sample: ProcSample, spawns: bool) -> int:
    return tree_ns(board, sample.pid) if spawns else sample.utime_ns + sample.stime_ns
