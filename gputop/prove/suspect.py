"""Follows a stream until the diagnosis names a cause to be tried, and then samples the job's pace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from gputop.diagnosis.facts.takers import MOST
from gputop.diagnosis.graph.placement import near_cpus
from gputop.findings.trouble import costs_time
from gputop.findings.verdict import LOOKING, PAUSING, Incident, Verdict, WhatIf
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.model.roles import program_name
from gputop.model.serving import Serving
from gputop.prove.change import Case, TargetProcess
from gputop.prove.served import pages_of
from gputop.prove.trial import JobSample, TrialSettings
from gputop.stream.following import Followed, Following
from gputop.system.text import clean

STANDS_NS = 2 * SECOND_NS  # ns that a cause must stand before it is tried: twice an incident's (`gputop.diagnosis.incidents.BEGIN_NS`)
HEALTHY_NS = 6 * SECOND_NS  # ns without a fault after which there is nothing to prove (guess)
NAMED_NS = 6 * SECOND_NS  # ns that a cause asked for by --cause has to be found by the diagnosis, before the busiest are taken
LOOK_NS = 20 * SECOND_NS  # ns for a verdict; a window of the diagnosis is a few seconds
BUSY_SHARE = 0.1  # of one CPU, from which a process may be a culprit that only --cause names (guess)
BUSY_BYTES_PER_S = 1 << 20  # bytes a second to and from disks, likewise (guess)
MOST_CULPRITS = 4  # busiest processes that are culprits
LEAST_TAKEN = 0.1  # of what the largest culprit takes, below which one is not touched: it would gain nothing (a choice)
PREFETCH = 2  # batches that each worker prepares ahead (PyTorch's default prefetch_factor; it cannot be seen from outside)
DRAIN = 2.0  # times as long as a queue of batches lasts, until it is empty: it is still being filled, and may be longer (guess)
LEAST_SETTLE_S, MOST_SETTLE_S = 0.5, 2.0  # s; bounds for the time after a switch: two readings of NVML's utilization, half an arm
MOST_ARM_S = 8.0  # s of an arm at most: three pairs in a minute
SERVED_ARM_S, SERVED_SETTLE_S, SERVED_LIMIT_S = 5.0, 1.0, 90.0  # s of a server's arm, of it not measured, of all arms (a choice)
WORK = ("sm_active_pct", "gr_active_pct", "util_pct")  # readings of a GPU's work, the best first
_BUSY_CAUSES = {"cpu-contention": "cpu", "worker-oversubscription": "", "disk-io": "disk"}


class Suspicion(Struct, frozen=True):
    """A case to be tried, and how."""

    case: Case
    settings: TrialSettings  # of the trial, unless the user sets its times
    named: bool  # whether the diagnosis named the culprits; False: they are the busiest processes


class SuspectWatch(Followed):
    """A stream, and the job that is asked about. `following` may be shared with another reader: then `take` is not called."""

    def __init__(self, pid: int | None = None, cause: str | None = None) -> None:
        self.following = Following()
        self._pid, self._cause = pid, cause
        self._since: tuple[tuple[int | None, str], int] = ((None, ""), 0)  # (trainer, cause) of the last feed, and since when
        self._began_ns = 0
        self._first: dict[int, tuple[int, int]] = {}  # pid -> (CPU ns, bytes to and from disks) when it was first seen
        self._worked_ns = 0  # when the GPUs' work was last read

    def take(self, item: Header | Frame) -> Suspicion | str | None:
        """Take the next item; a suspicion, or in words why there is nothing to try, once either is clear."""
        if isinstance(item, Frame):
            self._began_ns = self._began_ns or item.t_ns
            for proc in item.procs:
                self._first.setdefault(proc.pid, _used(proc.utime_ns + proc.stime_ns, proc.read_bytes, proc.write_bytes))
        return self._decide() if self.following.take(item) else None

    def suspicion_now(self) -> Suspicion | str:
        """Suspicion by the diagnosis at this moment, without waiting for more, else the reason why there is no case."""
        verdict = self.engine.verdict
        if verdict.trainer_pid is None or verdict.cause in ("none", "unexplained"):
            return "nothing to prove: the diagnosis names no cause at this moment"
        return self.suspicion_of(verdict)

    def suspicion_of(self, verdict: Verdict) -> Suspicion | str:
        """Suspicion by this verdict, of a moment ago, or the reason why there is no case."""
        if verdict.trainer_pid is None or verdict.trainer_pid not in self.board.infos:
            return "no job that runs is meant"
        return self._suspicion(verdict, verdict.cause, self._notable(verdict), named=True)

    def sample(self, trainer: TargetProcess) -> JobSample:
        """Sample of the trainer from the present board."""
        pid, board = trainer.pid, self.board
        info = board.infos.get(pid)
        calls = {name: call for (caller, name), call in board.calls.items() if caller == pid}
        phase = self.engine.phases.get(pid)
        return JobSample(
            board.t_ns, calls, board.probed_ns, self._fresh_work(pid), phase is not None and phase.word == PAUSING,
            self._verdict(pid).cause, info is None or info.start_ticks != trainer.start_ticks, self._pages(pid),
        )  # fmt: skip

    def predictions(self) -> list[WhatIf]:
        """Predicted effects of changes to the job, for a report when nothing can be tried."""
        return self.engine.what_if(self._verdict(self._pid))

    def missing_clock(self) -> str:
        """Why no steps are counted."""
        if self.board.probed_ns:
            return "no CUDA call comes once a step"
        state = self.board.sources.get("ebpf")
        return f"needs the eBPF probes: {state.reason if state and state.reason else 'no reading'}"

    def _decide(self) -> Suspicion | str | None:
        t_ns = self.board.t_ns
        verdict = self._verdict(self._pid)
        subject = verdict.trainer_pid, verdict.cause
        if subject != self._since[0] or verdict.symptom == LOOKING:
            self._since = subject, t_ns
        stood_ns, watched_ns = t_ns - self._since[1], t_ns - self._began_ns
        if verdict.trainer_pid is None:
            return self._without_trainer() if watched_ns >= HEALTHY_NS else None
        if self._cause is not None:
            return self._asked(self._cause, verdict, stood_ns, watched_ns)
        if verdict.symptom != LOOKING and verdict.cause not in ("none", "unexplained") and stood_ns >= STANDS_NS:
            return self._suspicion(verdict, verdict.cause, self._notable(verdict), named=True)
        if verdict.cause == "none" and verdict.symptom != LOOKING and stood_ns >= HEALTHY_NS:
            return "nothing to prove: the job has no fault that the diagnosis sees"
        if watched_ns >= LOOK_NS:
            return "nothing to try: the lost time is not explained" if verdict.cause == "unexplained" else "no verdict yet: try again"
        return None

    def _asked(self, cause: str, verdict: Verdict, stood_ns: int, watched_ns: int) -> Suspicion | None:
        """The suspicion of a cause that --cause names."""
        if verdict.cause == cause and stood_ns >= STANDS_NS:
            return self._suspicion(verdict, cause, self._notable(verdict), named=True)
        if watched_ns < NAMED_NS or verdict.cause == cause:
            return None
        return self._suspicion(verdict, cause, self._busiest(cause, watched_ns), named=False)

    def _without_trainer(self) -> str:
        if self._pid is None:
            return "nothing to prove: no training process is found (gputop doctor lists what can be seen)"
        return f"process {self._pid} is no trainer that gputop sees: it has no GPU context, or has ended"

    def _verdict(self, pid: int | None) -> Verdict:
        """Verdict on the job of ``pid``: the engine's if it is about that job, else the job's open incident that cost most."""
        verdict = self.engine.verdict
        if pid is None or verdict.trainer_pid == pid:
            return verdict
        role = self.engine.roles.get(pid)
        if role is None or role.kind != "trainer":
            return Verdict()
        open_ones = [one for one in self.engine.incidents if one.trainer_pid == pid and one.end_ns is None and costs_time(one)]
        worst = max(open_ones, key=lambda one: one.lost_s, default=None)
        return Verdict(symptom="healthy", trainer_pid=pid) if worst is None else _verdict_of(worst)

    def _suspicion(self, verdict: Verdict, cause: str, culprits: list[int], named: bool) -> Suspicion:
        trainer = verdict.trainer_pid
        assert trainer is not None
        family = [pid for pid, role in self.engine.roles.items() if role.trainer_pid == trainer and role.kind in ("trainer", "worker")]
        workers = [pid for pid in family if pid != trainer]
        case = Case(
            cause, self._target(trainer), self._targets([trainer, *workers]), self._targets([one.pid for one in verdict.victims]),
            self._targets([pid for pid in [*culprits, *self._their_like(culprits)] if pid not in family]),
            self._near_cpus(trainer),
        )  # fmt: skip
        pace = verdict.step.per_s if verdict.step is not None else None
        settings = settings_of_server() if self._pages(trainer) else settings_of(len(workers), pace)
        return Suspicion(case, settings, named)

    def _pages(self, pid: int) -> tuple[Serving, ...]:
        """The newest pages of the trainer's inference server; none of another job."""
        facts = self.engine.facts
        return () if facts is None else pages_of(self.board, facts.servers, pid)

    def _near_cpus(self, trainer: int) -> frozenset[int]:
        standing = self.engine.standing.get(trainer)
        return near_cpus(standing.job) if standing is not None else frozenset()

    def _busiest(self, cause: str, watched_ns: int) -> list[int]:
        """Processes outside of any training that used most of what ``cause`` is about; none for a cause that needs no culprit."""
        kind = _BUSY_CAUSES.get(cause, "")
        if not kind:
            return []
        least = BUSY_SHARE * watched_ns if kind == "cpu" else BUSY_BYTES_PER_S * watched_ns / SECOND_NS
        grown = {}
        for pid, proc in self.board.procs.items():
            now = _used(proc.utime_ns + proc.stime_ns, proc.read_bytes, proc.write_bytes)[kind == "disk"]
            grown[pid] = now - self._first.get(pid, (0, 0))[kind == "disk"]
        busy = [pid for pid, used in grown.items() if used >= least and pid not in self.engine.roles and self._has_program(pid)]
        return self._large({pid: grown[pid] for pid in sorted(busy, key=lambda pid: -grown[pid])[:MOST_CULPRITS]})

    def _notable(self, verdict: Verdict) -> list[int]:
        """Pids of the culprits that take a notable share; all pids if what they take is not measured."""
        kind = _BUSY_CAUSES.get(verdict.cause)
        taken = {one.pid: one.cpu_s if kind == "cpu" else self._moved(one.pid) if kind == "disk" else None for one in verdict.culprits}
        known = {pid: amount for pid, amount in taken.items() if amount is not None}
        return self._large(known) if len(known) == len(taken) else list(taken)

    def _moved(self, pid: int) -> int | None:
        """Bytes to and from disks since it was first seen; None if that is not known, or none."""
        proc, first = self.board.procs.get(pid), self._first.get(pid)
        if proc is None or first is None:
            return None
        return (_used(0, proc.read_bytes, proc.write_bytes)[1] - first[1]) or None

    def _large(self, taken: Mapping[int, float]) -> list[int]:
        """Pids that take at least `LEAST_TAKEN` of what the largest takes. Processes of one program in one session count together, like a
        build's compilers."""
        sums = dict[tuple[object, ...], float]()
        for pid, amount in taken.items():
            sums[self._crowd(pid)] = sums.get(self._crowd(pid), 0.0) + amount
        least = LEAST_TAKEN * max(sums.values(), default=0.0)
        return [pid for pid in taken if sums[self._crowd(pid)] >= least]

    def _crowd(self, pid: int) -> tuple[object, ...]:
        info = self.board.infos.get(pid)
        return (info.uid, info.session, program_name(info)) if info is not None and info.session else (pid,)

    def _their_like(self, culprits: list[int]) -> list[int]:
        """The rest of the same programs in the same sessions, if there are more than a window of the diagnosis names: to put only some of
        64 compilers aside frees no CPU."""
        named = {crowd for pid in culprits if len(crowd := self._crowd(pid)) > 1}
        return [
            pid for pid in self.board.infos
            if len(culprits) >= MOST and self._crowd(pid) in named
            and pid not in culprits and pid not in self.engine.roles and self._has_program(pid)
        ]  # fmt: skip

    def _has_program(self, pid: int) -> bool:
        """True if the process is neither a kernel thread nor gputop's own."""
        info = self.board.infos.get(pid)
        return info is not None and bool(info.cmdline) and program_name(info, titled=False) != "gputop"

    def _targets(self, pids: list[int]) -> tuple[TargetProcess, ...]:
        return tuple(self._target(pid) for pid in pids if pid in self.board.infos)

    def _target(self, pid: int) -> TargetProcess:
        info = self.board.infos[pid]
        return TargetProcess(pid, info.start_ticks, clean(program_name(info), 40))

    def _fresh_work(self, pid: int) -> float | None:
        """Mean work of the GPUs that the trainer uses, in %, by readings that are newer than at the last call; None without any."""
        own = [gpu for gpu in self.board.gpus.values() if pid in gpu.compute_pids] or list(self.board.gpus.values())
        name = next((name for name in WORK if any(gpu.number(name) is not None for gpu in own)), "")
        fresh = [gpu.number(name) for gpu in own if gpu.read_ns.get(name, 0) > self._worked_ns]
        self._worked_ns = max((gpu.read_ns.get(name, 0) for gpu in own), default=0)
        known = [value for value in fresh if value is not None]
        return sum(known) / len(known) if known else None


def settings_of(workers: int, per_s: float | None) -> TrialSettings:
    """Settings for a job with ``workers`` that makes ``per_s`` steps a second.

    After a switch it still uses up what was prepared before: the queue of a loader holds `PREFETCH` batches a worker, and one is on its
    way. They last so many steps, and `DRAIN` times as long while new ones come. What lasts longer than the bound makes the gain look
    smaller, never greater. Arms of a slow job are longer, so that the number of its steps means something.
    """
    queue = PREFETCH * workers + 1
    drained = DRAIN * queue / per_s if per_s else MOST_SETTLE_S if workers else LEAST_SETTLE_S
    settle = min(max(LEAST_SETTLE_S, drained), MOST_SETTLE_S)
    return TrialSettings(settle_s=settle, most_s=MOST_ARM_S - settle)


def settings_of_server() -> TrialSettings:
    """Settings for an inference server whose metrics are read once a second: an arm has several of its pages."""
    return TrialSettings(seconds=SERVED_ARM_S, settle_s=SERVED_SETTLE_S, limit_s=SERVED_LIMIT_S)


def _verdict_of(one: Incident) -> Verdict:
    return Verdict(
        symptom=one.symptom, cause=one.cause, trainer_pid=one.trainer_pid, culprits=tuple(one.culprits), victims=tuple(one.victims),
        severity=one.severity,
    )  # fmt: skip


def _used(cpu_ns: int, read_bytes: int | None, write_bytes: int | None) -> tuple[int, int]:
    return cpu_ns, (read_bytes or 0) + (write_bytes or 0)


def samples(items: Iterator[Header | Frame], watch: SuspectWatch, trainer: TargetProcess, since_ns: int) -> Iterator[JobSample]:
    """A stream as samples of a trainer, from ``since_ns`` on; what is older waited in the pipe while the user was asked."""
    for item in items:
        watch.take(item)
        if isinstance(item, Frame) and item.t_ns >= since_ns:
            yield watch.sample(trainer)
