"""Incidents of lost GPUs (gpu-lost): one per GPU from its loss until it answers again, whether or not a process used it.

The seconds of a job that cannot go on are booked with that job; seconds of a lost GPU without a job are counted here.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from gputop.diagnosis.causes import gpu_lost
from gputop.diagnosis.facts.facts import GpuFacts
from gputop.diagnosis.facts.losses import SILENT
from gputop.diagnosis.graph.job import WalkedFacts
from gputop.diagnosis.incidents import Incidents, begun
from gputop.diagnosis.symptoms import Standing
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import GPU_LOST, Incident, Verdict, Victim
from gputop.model.board import Board
from gputop.model.roles import program_name
from gputop.model.xids import ENDING_XIDS
from gputop.system.text import clean

XID_NS = 1_500_000_000  # ns to wait for the Xid of a loss, which is read each second: the incident comes once, with its reason
USED_NS = 10_000_000_000  # ns before the loss within which a trainer counts as the GPU's user: a window, and the time to find hangs


class _LostGpu(Struct):
    """A lost GPU and its incident, which gets a number once it is published."""

    facts: GpuFacts
    first_ns: int
    incident: Incident


class LostGpus(Struct):
    """The GPUs that are lost now, and the last users of each GPU."""

    known: dict[int, _LostGpu] = field(default_factory=dict)
    _users: dict[int, tuple[int, dict[int, Victim]]] = field(default_factory=dict)  # GPU -> (when it was last used, pid -> user)
    _began_ns: int = 0
    _mute_ns: int = 0  # since when the driver has not listed the GPUs; 0: it has
    _mute: Incident | None = None

    def begin(self) -> None:
        """Go on watching; losses that last get new incidents."""
        self.known.clear()
        self._began_ns, self._mute = 0, None

    def note(self, board: Board, facts: WalkedFacts, seconds: float, standing: list[Standing], incidents: Incidents) -> float:
        """Take in the window: incidents begin, change and end. Returns the GPU seconds lost that no job has."""
        self._began_ns = self._began_ns or board.t_ns
        self._note_driver(board, facts, incidents)
        lost = {gpu.index: gpu for gpu in facts.gpus if gpu.loss is not None}
        jobless_s = 0.0
        for index in self.known.keys() - lost.keys():
            self.known.pop(index).incident.end_ns = board.t_ns
        for gpu in facts.gpus:
            self._note_users(gpu, facts, board)
        for index, gpu in lost.items():
            jobs = [job for job in facts.jobs if index in {own.index for own in job.gpus}]
            one, span_s = self.known.get(index), seconds
            if one is None:
                since_ns = max(gpu.loss.since_ns if gpu.loss is not None else 0, self._began_ns)
                one, span_s = self.known.setdefault(index, _LostGpu(gpu, since_ns, _incident(since_ns))), (board.t_ns - since_ns) / 1e9
            one.facts, incident = gpu, one.incident
            if gpu.gone and not jobs:
                incident.lost_s += span_s
                jobless_s += span_s
            self._tell(one, facts, jobs[0].trainer.pid if jobs else None)
            incident.last_ns = board.t_ns
            if not incident.id and (_has_reason(gpu) or one.first_ns == self._began_ns or board.t_ns - one.first_ns >= XID_NS):
                incidents.append(incident)
        self.count(standing)
        return jobless_s

    def _note_driver(self, board: Board, facts: WalkedFacts, incidents: Incidents) -> None:
        """Note whether the driver has started: that may take long, but not for ever. The GPU seconds lost before are unknown."""
        if not facts.unanswered:
            if self._mute is not None:
                self._mute.end_ns = board.t_ns
            self._mute, self._mute_ns = None, 0
            return
        self._mute_ns = self._mute_ns or board.t_ns
        silent_s = (board.t_ns - self._mute_ns) / 1e9
        if silent_s < policy.FAR_S:
            return
        if self._mute is None:
            self._mute = _incident(self._mute_ns)
            incidents.append(self._mute)
        found = gpu_lost.of_driver(silent_s)
        self._mute.headline, self._mute.confidence = filled("No GPU can be read: {}", found.detail), 0.9
        self._mute.evidence, self._mute.fixes, self._mute.last_ns = list(found.evidence), list(found.fixes), board.t_ns

    def count(self, booked: Iterable[Standing]) -> None:
        """Add the seconds that were booked with jobs that cannot go on for want of a GPU."""
        for one in booked:
            self._add(one, {index: lost.incident for index, lost in self.known.items()})

    def settled(self, incidents: list[Incident], unbooked: Iterable[Standing]) -> list[Incident]:
        """The incidents, with seconds not booked yet added to lost GPUs' incidents."""
        copies = {index: replace(lost.incident) for index, lost in self.known.items()}
        for one in unbooked:
            self._add(one, copies)
        by_id = {copy.id: copy for copy in copies.values()}
        return [by_id.get(one.id, one) for one in incidents]

    def verdict(self) -> Verdict | None:
        """Verdict on the first lost GPU (or the silent driver), for a host without other trouble; None if no GPU is lost."""
        one = next(iter(self.known.values()), None)
        told = one.incident if one is not None else self._mute
        if told is None:
            return None
        return Verdict(
            symptom=told.symptom, cause=told.cause, gpu=told.gpu, headline=told.headline,
            lost_pct=100.0 if one is not None and one.facts.gone else None,
            detail=told.detail, severity=told.severity, confidence=told.confidence, evidence=tuple(told.evidence), fixes=tuple(told.fixes),
            victims=tuple(told.victims), trainer_pid=told.trainer_pid, why=told.headline, path=told.path,
        )  # fmt: skip

    def _add(self, one: Standing, incidents: dict[int, Incident]) -> None:
        """Divide the seconds of a job among its lost GPUs."""
        if one.cause != GPU_LOST or not one.booked:
            return
        whose = [gpu.index for gpu in gpu_lost.lost_of(one.job, one.facts) if gpu.index in incidents]
        for index in whose:
            incident, lost_s = incidents[index], sum(part[2] for part in one.booked) / len(whose)
            incident.lost_s += lost_s
            incident.regain_gpu_s = incident.lost_s

    def _note_users(self, gpu: GpuFacts, facts: WalkedFacts, board: Board) -> None:
        """Note the GPU's users: the jobs that train on it and the other processes in the driver's list."""
        jobs = [job for job in facts.jobs if gpu.index in {own.index for own in job.gpus}]
        users = {proc.pid: Victim(proc.pid, proc.role.kind, clean(proc.role.label)) for job in jobs for proc in (job.trainer, *job.workers)}
        for pid in gpu.pids:
            if pid not in users and (info := board.infos.get(pid)) is not None:
                users[pid] = Victim(pid, "process", clean(program_name(info)))
        if users:
            self._users[gpu.index] = board.t_ns, users

    def _tell(self, one: _LostGpu, facts: WalkedFacts, trainer_pid: int | None) -> None:
        """Bring the incident's words and numbers up to date. A process that used the GPU after the loss, or shortly before, stays named."""
        gpu, incident = one.facts, one.incident
        used_ns, users = self._users.get(gpu.index, (0, {}))
        if used_ns >= one.first_ns - USED_NS:
            known = {victim.pid for victim in incident.victims}
            incident.victims = [*incident.victims, *(victim for pid, victim in users.items() if pid not in known)]
        trainers = [victim for victim in incident.victims if victim.role == "trainer"]
        incident.trainer_pid = trainer_pid or incident.trainer_pid or next((victim.pid for victim in trainers), None)
        incident.gpu, incident.symptom = gpu.index, "idle" if gpu.gone else "healthy"
        named = [filled("{} ({})", victim.name, victim.pid) for victim in incident.victims if victim.role not in ("worker", "helper")]
        unnamed = [filled("pid {}", pid) for pid in sorted(gpu.pids) if pid not in {victim.pid for victim in incident.victims}]
        found = gpu_lost.finding(gpu, facts, [*named, *unnamed])
        incident.headline = gpu_lost.told(gpu) + _fate(trainers or incident.victims, facts, gpu)
        incident.detail, incident.evidence, incident.fixes = found.detail, list(found.evidence), list(found.fixes)
        incident.path = gpu_lost.path_of(gpu)
        incident.confidence = 0.9 if gpu.loss is not None and gpu.loss.kind == SILENT else 1.0
        incident.regain_gpu_s = incident.lost_s if gpu.gone else None


def _fate(users: list[Victim], facts: WalkedFacts, gpu: GpuFacts) -> str:
    """Words for the fate of the GPU's first user; empty without one."""
    if not users or not gpu.gone:
        return ""
    first = users[0]
    fate = "cannot go on" if first.pid in facts.pids else "used it, and has ended"
    return filled("; {} ({}) {}", first.name, first.pid, fate)


def _has_reason(gpu: GpuFacts) -> bool:
    """True if the loss has its final reason: no later reading can improve it."""
    return gpu.loss is not None and (gpu.loss.kind == SILENT or gpu.loss.xid in ENDING_XIDS)


def _incident(since_ns: int) -> Incident:
    return begun(GPU_LOST, since_ns, symptom="idle", severity="high")
