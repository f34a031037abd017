"""The last seconds of the whole machine: boards go in, the facts of the window come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from gputop.diagnosis.facts import feeders, intensity, waits
from gputop.diagnosis.facts.facts import Facts, GpuFacts, HostFacts, JobFacts, Member, OutputReader, Taker, awaited_gpus, mig_parts
from gputop.diagnosis.facts.family import Family, part_of
from gputop.diagnosis.facts.hosts import HostTrack
from gputop.diagnosis.facts.launches import Launches
from gputop.diagnosis.facts.life import Pulse, absent_ranks
from gputop.diagnosis.facts.pauses import Span, Turns, length_s, merged, repeated
from gputop.diagnosis.facts.points import Points, copied_beside
from gputop.diagnosis.facts.proc import ProcFacts, knowing
from gputop.diagnosis.facts.respawns import Respawns
from gputop.diagnosis.facts.starts import Start, held_bytes
from gputop.diagnosis.facts.stepclock import Clock, step_of
from gputop.diagnosis.facts.takers import TakerTrack, born_ns, name_of
from gputop.diagnosis.facts.tracks import GpuTrack, ProcTrack, some_worked
from gputop.diagnosis.facts.wakes import Wake, WakeTrack
from gputop.findings import policy
from gputop.findings.verdict import Step
from gputop.model import roles as who
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Gpu, GpuReading, Met, ProcInfo, ProcSample
from gputop.model.roles import Role
from gputop.model.stream import HIDDEN

RHYTHM_NS = 4_500_000_000
ROLES_NS = 1_000_000_000


class Window:
    """The window of the whole machine. It folds nothing and forgets by itself; `facts` costs well under a millisecond for twenty
    processes."""

    def __init__(self) -> None:
        self.roles: dict[int, Role] = {}
        self._clear()

    def _clear(self) -> None:
        self.t_ns = self._seq = self._since_ns = 0
        self.continues = False
        self._points = Points()
        self._launches = Launches()
        self._procs: dict[int, ProcTrack] = {}
        self._gpus: dict[int, GpuTrack] = {}
        self._parts: dict[tuple[int, int], GpuTrack] = {}  # (GPU, GPU instance) -> readings of that part, if MIG has split the GPU
        self._host = HostTrack()
        self._wakes = WakeTrack()
        self._woken: dict[int, list[Wake]] = {}  # tid -> its wakers in the window
        self._takers = TakerTrack()
        self._births: dict[int, dict[int, int]] = {}
        self._respawns: dict[int, Respawns] = {}
        self._first_sets: dict[int, tuple[int, int]] = {}
        """Trainer -> (when its first workers were seen, start_ticks of the last of these)."""
        self._starts: dict[int, Start] = {}
        self._named: dict[int, bool] = {}  # pids of trainers with workers that take torch's name
        self._rhythm_ns: dict[int, int] = {}
        self._paces: dict[int, float | None] = {}
        self._clocks: dict[int, Clock] = {}
        self._turns: dict[int, Turns] = {}
        self._pauses: dict[int, list[Span]] = {}  # trainer -> its pauses, including those before the window
        self._roles_ns = 0
        self._held_bytes: dict[int, float] = {}  # of the GPUs' memory, by pid
        self._pulses: dict[int, Pulse] = {}  # signs of life of each trainer
        self._families: dict[int, Family] = {}
        self._seen: tuple[dict[int, ProcInfo], frozenset[int], dict[int, dict[int, int]]] = {}, frozenset(), {}

    def push(self, board: Board) -> bool:
        """Take in the board; False if it is not newer than the last one. After a jump in time, or with another collector (whose probes
        count from 0), the window begins again."""
        if board.t_ns == self.t_ns:
            return False
        if not 0 < board.t_ns - self.t_ns <= policy.GAP_NS or board.seq < self._seq:
            self._clear()
        else:
            self.continues = True
        self.t_ns, self._seq, self._since_ns = board.t_ns, board.seq, self._since_ns or board.t_ns
        self._assign(board)
        self._points.push(board, self.roles)
        oldest = self._points.oldest_ns
        self._launches.forget(oldest, self.roles)
        self._push_procs(board, oldest)
        self._push_gpus(board, oldest)
        self._host.push(board, oldest)
        self._wakes.push(board, oldest)
        self._takers.push(board, self.roles, oldest)
        return True

    def begin(self) -> None:
        """Let paces count from now on."""
        self._points.restart(*self._clocks)

    def _push_gpus(self, board: Board, oldest_ns: int) -> None:
        ours = () if who.is_foreign_list(board.infos, board.compute_pids) else board.infos
        for index, gpu in board.gpus.items():
            track = self._gpus.setdefault(index, GpuTrack())
            track.push(gpu, board.t_ns, oldest_ns)
            if any(proc.pid in ours for proc in gpu.procs):
                track.held_ns = board.t_ns
            for instance, part in mig_parts(gpu):
                self._parts.setdefault((index, instance), GpuTrack()).push(part, board.t_ns, oldest_ns)
        self._parts = {place: track for place, track in self._parts.items() if track.last_ns == board.t_ns}

    def look(self, frame: Frame) -> None:
        """Take in the waits and readings of a frame between two pushes."""
        self._points.looked = True
        if frame.probes is not None and frame.ticks == 1:  # one reading a second cannot show pauses between steps
            self._points.look(frame.probes)
        self._launches.note(frame.t_ns, frame.sampled)
        samples: tuple[Met | ProcSample, ...] = (*frame.met, *frame.procs)
        for sample in samples:
            track = self._procs.get(sample.pid)
            if track is not None:
                track.look(sample)
        readings: list[Gpu] | list[GpuReading] = frame.gpus if frame.ticks == 1 else frame.readings
        for gpu in readings:
            known = self._gpus.get(gpu.index)
            if known is not None:
                known.look(gpu)

    def _assign(self, board: Board) -> None:
        fresh, before = self.t_ns - self._roles_ns < ROLES_NS, self._seen[0]
        # A spawned child is named a worker once it has imported torch, and may be gone a second later.
        if fresh and len(board.infos) == len(before) and all(board.infos.get(pid) is before.get(pid) for pid in self.roles):
            return
        seen = dict(board.infos), board.compute_pids, board.contexts
        if seen != self._seen:
            self.roles, self._seen = who.assign(*seen), seen
        self._roles_ns = self.t_ns

    def _push_procs(self, board: Board, oldest_ns: int) -> None:
        hot = who.hot(self.roles)
        for pid in hot:
            sample = board.procs.get(pid)
            if sample is None or self._has_ended(sample):
                continue
            sched = board.threads.get(pid) if board.switch_share >= 1.0 else None  # glimpses miss long sleeps: samples know better
            track = self._procs.get(pid)
            if track is None or track.samples[-1].start_ticks != sample.start_ticks:
                # The trainer's waits before the first look are unknown.
                born = born_ns(sample, board) if self.continues and self.roles[pid].kind == "worker" else 0
                self._procs[pid] = ProcTrack(sample, sched, board.header.machine, born)
                self._note_birth(sample, board)
            else:
                track.push(sample, sched, oldest_ns)
        self._note_starting(board)
        for pid in [pid for pid in self._procs if pid not in hot or pid not in board.procs or self._has_ended(board.procs[pid])]:
            del self._procs[pid]
        self._forget_ended(board)

    def _forget_ended(self, board: Board) -> None:
        """Forget trainers that have ended: their pid may be reused."""
        told: tuple[dict[int, Any], ...] = self._births, self._respawns, self._first_sets, self._starts, self._named, self._turns
        for known in (*told, self._pauses, self._rhythm_ns, self._paces, self._clocks, self._families):
            for pid in [pid for pid in known if pid not in board.procs]:
                del known[pid]

    def _has_ended(self, sample: ProcSample) -> bool:
        """Whether the process is a trainer that has ended and was not reaped. (Ended workers matter to their trainer, which is looked
        at.)"""
        return sample.state in waits.ENDED_STATES and self.roles[sample.pid].kind == "trainer"

    def _note_birth(self, sample: ProcSample, board: Board) -> None:
        role = self.roles[sample.pid]
        if role.kind != "worker" or role.trainer_pid is None:
            return
        self._note_start(role.trainer_pid, sample, board)
        seen_ns, last_ticks = self._first_sets.get(role.trainer_pid, (self.t_ns, 0))
        if seen_ns == self.t_ns:
            self._first_sets[role.trainer_pid] = seen_ns, max(last_ticks, sample.start_ticks)
        elif max(self.t_ns - seen_ns, (sample.start_ticks - last_ticks) * SECOND_NS // board.header.clock_tick_hz) > policy.FRESH_NS:
            self._births.setdefault(role.trainer_pid, {})[sample.pid] = self.t_ns

    def _note_starting(self, board: Board) -> None:
        """Note births of spawned children that have no name yet while there are named workers: workers of a short validation end soon after
        they get it."""
        for pid, role in self.roles.items():
            trainer, sample = role.trainer_pid, board.procs.get(pid)
            if trainer in self._first_sets and sample is not None and role.kind == "helper" and who.is_spawned_child(board.infos[pid]):
                self._note_start(trainer, sample, board)

    def _note_start(self, trainer: int, sample: ProcSample, board: Board) -> None:
        born = born_ns(sample, board)
        self._respawns.setdefault(trainer, Respawns()).note_birth(born if self.t_ns - born <= policy.STALE_NS else self.t_ns)

    def _note_name(self, track: ProcTrack, info: ProcInfo, role: Role) -> None:
        if info.comm == who.TORCH_WORKER and role.trainer_pid is not None:
            self._named[role.trainer_pid] = True
        elif role.kind == "worker" and role.trainer_pid in self._named:
            track.began_ns = self.t_ns

    def shares(self) -> dict[tuple[str, int], tuple[float, ...]]:
        """What each process of a job and each GPU did in the window, in shares that can be compared: ``proc`` and pid, or ``gpu`` and index
        -> `ProcTrack.shares` or `GpuTrack.shares`."""
        procs = {("proc", pid): track.shares() for pid, track in self._procs.items()}
        return procs | {("gpu", index): track.shares() for index, track in self._gpus.items()}

    def parties(self, board: Board) -> dict[int, tuple[Role, ProcInfo | None]]:
        """Role and description of each process of a job."""
        return {pid: (self.roles[pid], board.infos.get(pid)) for pid in self._procs}

    def gpu_util(self, index: int) -> float | None:
        """The latest utilization of a GPU, as a share; None if its last reading is old."""
        track = self._gpus.get(index)
        return None if track is None else track.util_now

    def facts(self, board: Board) -> Facts:
        """The window's facts, without those that the graph finds."""
        seconds = (self.t_ns - self._points.oldest_ns) / 1e9
        gpus = {index: track.facts(index) for index, track in self._gpus.items() if index in board.gpus}
        host, self._woken = self._host.facts(board), self._wakes.by_thread()
        behind = self._takers.behind()
        takers, helpers, watching = self._takers.facts(board, self.roles, behind, self._points.oldest_ns)
        self._held_bytes = held_bytes(board.gpus.values())
        jobs = [self._complete(job, board, host) for job in self._jobs(board, gpus)]
        self._takers.fed = {pid: job.trainer.pid for job in jobs for pid in job.fed_by}
        starters = self._takers.starters(self.roles)
        jobs = [self._with_members(job, board) for job in self._with_programs(board, jobs, starters)]
        family = {one.pid: job.trainer.pid for job in jobs for one in job.members} | _family(jobs, starters) | self._takers.fed
        jobs = intensity.with_kin([_with_cpus(job, helpers.get(job.trainer.pid, {}), takers, family) for job in jobs])
        jobs = self._with_signs_of_life(board, jobs, len(gpus))
        late_for = {word for job in jobs for proc in (job.trainer, *job.workers) for word in (*proc.kinds, *proc.threads_met)}
        pressed = any(job.pressed for job in jobs)
        return Facts(
            t_ns=self.t_ns, seconds=seconds, jobs=jobs, host=host, gpus=list(gpus.values()), takers=takers, probed=bool(board.threads),
            switch_share=board.switch_share,
            feeds=len(self._points), behind=behind, family=family,
            movers=self._takers.movers(self.roles, self._points.oldest_ns) if waits.DISK in late_for else [],
            growers=self._takers.growers(board, self.roles) if pressed or waits.DISK in late_for else [], watching=watching,
            unseen=[facts for index, facts in gpus.items() if self._gpus[index].held_ns < self._points.oldest_ns], hidden=_hidden(board),
            unanswered=not board.gpus and "nvml" in board.sources and board.sources["nvml"].state == "partial",
            probes_load="ebpf" in board.sources and board.sources["ebpf"].state == "partial",
            watched_s=(self.t_ns - self._since_ns) / 1e9, wakes=self._woken, pids=frozenset(board.infos), threads=self._wakes.threads(),
            main_calls=self._wakes.main_calls(),
        )  # fmt: skip

    def _with_programs(self, board: Board, jobs: list[JobFacts], starters: Mapping[int, int]) -> list[JobFacts]:
        """Add what the loaders' child programs were doing. A parent inherits only CPU time not counted before."""
        oldest_ns = self._points.oldest_ns
        span_ns = max(1, self.t_ns - oldest_ns)
        met = self._takers.met(starters, waits.kinds(board.header.machine), oldest_ns)
        ended_ns = self._takers.ended_ns(board, self.roles)
        programs = self._takers.programs(starters, oldest_ns)
        stopped, mute = self._takers.stopped(board, starters), self._takers.mute(board, starters)
        names = self._takers.programs_of(starters, board)

        def with_own(proc: ProcFacts) -> ProcFacts:
            children = max(0.0, proc.children - ended_ns.get(proc.pid, 0) / span_ns)
            return knowing(proc, programs=programs.get(proc.pid, (0.0, 0.0)), children=children)

        found = []
        for job in jobs:
            pids = [job.trainer.pid, *(worker.pid for worker in job.workers)]
            found.append(replace(
                job, trainer=job.trainer if job.workers else with_own(job.trainer), workers=[with_own(worker) for worker in job.workers],
                programs_met=sum((met.get(pid, Counter()) for pid in (pids[1:] or pids)), Counter()),
                programs={pid: name for parent in pids for pid, name in names.get(parent, {}).items()},
                lasting=self._lasting(board, {pid for parent in pids for pid in names.get(parent, {})}),
                stopped={pid: name for parent in pids for pid, name in stopped.get(parent, {}).items()},
                mute={pid: name for parent in pids for pid, name in mute.get(parent, {}).items()},
            ))  # fmt: skip
        return found

    def _with_members(self, job: JobFacts, board: Board) -> JobFacts:
        """Add the job's family outside its own tree."""
        known = self._families.setdefault(job.trainer.pid, Family())
        known.note(job, board.infos, self._takers.others(board, self.roles))
        kind_of, oldest_ns = waits.kinds(board.header.machine), self._points.oldest_ns
        members = [
            Member(
                pid=pid, name=name_of(board, pid), part=part_of(pid, job, board.infos), near=pid in known.near,
                cores=self._takers.cores(pid) or 0.0, met=self._takers.waits_of(pid, kind_of, oldest_ns),
            )
            for pid in (*known.near, *known.behind)
        ]  # fmt: skip
        return replace(job, members=members) if members else job

    def _lasting(self, board: Board, pids: set[int]) -> frozenset[int]:
        """Select the ``pids`` that began before the window."""
        oldest_ns = self._points.oldest_ns
        return frozenset(pid for pid in pids if (sample := board.procs.get(pid)) is not None and born_ns(sample, board) < oldest_ns)

    def _with_signs_of_life(self, board: Board, jobs: list[JobFacts], gpus: int) -> list[JobFacts]:
        self._pulses = {job.trainer.pid: self._pulses.get(job.trainer.pid) or Pulse(self.t_ns, self.t_ns, self.t_ns) for job in jobs}
        jobs = [self._pulses[job.trainer.pid].note(job, board, self.roles) for job in jobs]
        absent = absent_ranks(jobs, board, gpus)
        return [replace(job, absent_ranks=absent[job.trainer.pid]) if job.trainer.pid in absent else job for job in jobs]

    def _jobs(self, board: Board, gpus: dict[int, GpuFacts]) -> list[JobFacts]:
        """Jobs with the facts that their own processes and GPUs provide."""
        procs: dict[int, ProcFacts] = {}
        workers: dict[int, list[ProcFacts]] = {}
        managers: dict[int | None, list[ProcFacts]] = {}
        for pid, track in self._procs.items():
            role, info = self.roles.get(pid), board.infos.get(pid)
            if role is None or info is None:
                continue
            self._note_name(track, info, role)
            own_wakes = self._own_wakes(pid) if role.kind == "trainer" else None
            procs[pid] = facts = track.facts(info, role, own_wakes)
            if role.kind == "worker" and role.trainer_pid is not None:
                workers.setdefault(role.trainer_pid, []).append(facts)
            elif role.label == who.MANAGER:
                managers.setdefault(role.trainer_pid, []).append(facts)
        trainers = [facts for facts in procs.values() if facts.role.kind == "trainer"]
        jobs = []
        for trainer in trainers:
            own = sorted(workers.get(trainer.pid, []), key=lambda worker: worker.role.index or 0)
            working = _without_finished(own)
            used = self._gpus_of(trainer, trainers, gpus)
            calls = self._points.calls(trainer.pid, used)
            serve = managers.get(trainer.pid, [])
            jobs.append(JobFacts(trainer, working, used, calls, finished=len(own) - len(working), managers=serve))
        return feeders.with_lent(jobs, lambda job: self._woken_by(board, job))

    def _complete(self, job: JobFacts, board: Board, host: HostFacts) -> JobFacts:
        """Add facts that a job's own processes and GPUs cannot provide."""
        trainer, oldest_ns = job.trainer, self._points.oldest_ns
        start = self._start(job, board)
        before_s = start.before_s(oldest_ns, self.t_ns)
        if before_s is None or not start.first_ns:  # its GPUs' earlier work was for others, or a start
            job = replace(job, gpus=[replace(gpu, stretch_s=0.0, breaks_s=0.0, sunk_s=0.0, dips_s=0.0, pauses=()) for gpu in job.gpus])
        worked_ns, births = max((gpu.worked_ns for gpu in job.gpus), default=0), [born_ns(worker.newer, board) for worker in job.workers]
        by_itself = start.is_by_itself(worked_ns, births, self.t_ns)
        locked = [*job.workers, *([trainer] if trainer.kept_out(waits.LOCK) else [])]
        readers, last = feeders.readers(trainer, self._woken_by_pid(trainer.pid)), trainer.newer
        woken_by = {} if job.workers else {pid: share for pid, share in self._woken_by(board, job).items() if pid not in readers}
        job = replace(
            job, **self._gpu_turns(job), before_s=before_s, unbegun_s=0.0 if start.first_ns else (self.t_ns - start.born_ns) / 1e9,
            is_torchs=feeders.is_torchs(job), by_itself=by_itself, births=[] if by_itself else self._recent_births(trainer.pid),
            holders={pid: name_of(board, pid) for proc in locked if (pid := proc.locked_out[0])}, rivals=self._rivals(trainer),
            readers=[self._reader(board, pid, job) for pid in readers], woken_by=woken_by,
            fed_by=feeders.feeding(woken_by, board.infos, self._procs),
            unheard=trainer.still_s >= policy.STUCK_S
            and waits.is_unheard(board.header.machine, last.syscall, last.syscall_arg, last.wchan),
            launches_per_s=board.launches[trainer.pid].per_s if trainer.pid in board.launches else None, find_step=self._step,
        )  # fmt: skip
        job = replace(job, **self._respawned(job), **self._paused(job), **self._called(job), **self._points.limits(job, board))
        if before_s is None:
            self._points.restart(trainer.pid)
        elif job.calls is not None:
            self._clocks.setdefault(trainer.pid, Clock()).note(job.calls)
        return replace(job, pressed=(host.psi_memory or 0.0) >= policy.LITTLE or bool(job.memory_path))

    def _called(self, job: JobFacts) -> dict[str, Any]:
        """Fields about CUDA calls: by probes, else by samples."""
        if job.calls is not None:
            return {} if job.idle is None else {"calls": copied_beside(job.calls, job.idle)}
        if (sampled := self._points.sampled(job.trainer.pid)) is None:
            return {}
        busy = [self._gpus[gpu.index].busy for gpu in job.gpus if gpu.index in self._gpus]
        sampled = replace(sampled, idle_beside_launches=self._launches.idle_beside(job.trainer.pid, busy))
        return {"sampled": sampled, "launches_per_s": sampled.launch / policy.LAUNCH_S}

    def _gpu_turns(self, job: JobFacts) -> dict[str, float]:
        """`JobFacts.turns` and `JobFacts.unseen_turns` of a job with several GPUs, whose step may go from one GPU to the next.

        Some GPU worked at least as long as readings show, or as the trainer was seen to wait; and at most as long as all together.
        """
        utils = [gpu.util for gpu in job.gpus if gpu.util is not None]
        if len(utils) < 2 or job.idle is None:
            return {}
        tracks = [self._gpus[gpu.index] for gpu in job.gpus if gpu.index in self._gpus and gpu.instance is None]
        seen = some_worked(tracks, self._points.oldest_ns) if len(tracks) == len(utils) else None
        least, most = seen or (0.0, min(1.0, sum(utils)))
        awaited = awaited_gpus(job, self._wakes.main_calls().get(job.trainer.pid, 1.0))
        worked, together = max(*utils, least, min(most, awaited)), 1.0 - job.idle
        return {"turns": max(0.0, worked - together), "unseen_turns": 0.0 if job.calls is not None else max(0.0, most - worked)}

    def _respawned(self, job: JobFacts) -> dict[str, float]:
        """Fields about replaced workers, if at least half are young. (A pool that replaces single workers keeps working.)"""
        pid, oldest_ns = job.trainer.pid, self._points.oldest_ns
        respawns = self._respawns.setdefault(pid, Respawns())
        utils = [gpu.util_now for gpu in job.gpus if gpu.util_now is not None]
        util = sum(utils) / len(utils) if utils else None
        respawns.note(self.t_ns, self._points.calls_made(pid), job.trainer.newer.vol, util)
        if 2 * len(job.births) >= max(1, len(job.workers)) and (cost := respawns.cost(oldest_ns)) is not None:
            return {"respawned": cost[0] * 1e9 / max(1, self.t_ns - oldest_ns), "respawn_s": cost[1]}
        return {}

    def _paused(self, job: JobFacts) -> dict[str, Any]:
        pid, oldest_ns = job.trainer.pid, self._points.oldest_ns
        turns = self._turns.setdefault(pid, Turns())
        turns.note(job.workers, job.idle or 0.0, self.t_ns)
        quiet, away = self._points.quiet(pid), turns.spans(oldest_ns, self.t_ns)
        pauses = [*min((gpu.pauses for gpu in job.gpus), key=length_s, default=()), *quiet, *away]
        before = repeated(merged([*self._pauses.get(pid, ()), *pauses], self.t_ns), self.t_ns)
        return {"quiet_s": length_s(quiet, oldest_ns), "away_s": length_s(away, oldest_ns), "pauses": pauses, "repeated": before}

    def note_pauses(self, job: JobFacts) -> None:
        """Remember the pauses of a job whose verdict is a pause: see `JobFacts.repeated`."""
        self._pauses[job.trainer.pid] = merged([*self._pauses.get(job.trainer.pid, ()), *job.pauses], self.t_ns)

    def _start(self, job: JobFacts, board: Board) -> Start:
        """The trainer's start, brought up to date. Shortly after its birth its GPU's utilization still covers the process before it."""
        trainer = job.trainer
        born = born_ns(trainer.newer, board)
        start = self._starts.setdefault(trainer.pid, Start(born, min(born, trainer.began_ns) + policy.READING_NS))
        worked_ns = max((gpu.worked_ns for gpu in job.gpus), default=0)
        still = trainer.still_s >= policy.STUCK_S and feeders.threads_at_work(job)
        queued = trainer.kinds.get(waits.QUEUE, 0.0) >= policy.MOST
        loading_ns = max((born_ns(worker.newer, board) for worker in job.workers), default=0) if queued else 0
        start.note_batches(trainer, job.workers, self.t_ns)
        start.note(worked_ns, self._held_bytes.get(trainer.pid, 0.0), still, self._since_ns, self.t_ns, loading_ns)
        return start

    def _rivals(self, trainer: ProcFacts) -> dict[int, float]:
        """Other trainers -> share of the window until they released the lock this one slept at. Collectives are excluded: they wake by the
        kernel or own threads."""
        asked = sum(trainer.kinds.get(kind, 0.0) for kind in (waits.PIPE, waits.NETWORK, waits.POLL))
        if trainer.kinds.get(waits.LOCK, 0.0) <= asked:
            return {}
        others = (pid for pid in self._procs if pid != trainer.pid and (role := self.roles.get(pid)) and role.kind == "trainer")
        woken = self._woken_by_pid(trainer.pid)
        return {pid: woken[pid] for pid in others if woken.get(pid, 0.0) > 0.0}

    def _woken_by_pid(self, tid: int) -> dict[int, float]:
        """Pid -> share of the window that the thread slept until a thread of that process woke it."""
        found: dict[int, float] = {}
        for wake in self._woken.get(tid, ()):
            found[wake.pid] = found.get(wake.pid, 0.0) + wake.share
        return found

    def _woken_by_others(self, pid: int) -> dict[int, float]:
        """`_woken_by_pid` of a main thread, plus processes that woke those own threads which then woke it: they receive on its behalf."""
        found = self._woken_by_pid(pid)
        for own in self._woken.get(pid, ()):
            theirs = [one for one in self._woken.get(own.tid, ()) if one.tid != pid] if own.pid == pid else []
            slept = sum(one.share for one in theirs)
            for one in theirs:
                if one.pid not in (0, pid):
                    found[one.pid] = found.get(one.pid, 0.0) + own.share * one.share / slept
        return found

    def _own_wakes(self, pid: int) -> tuple[float, float] | None:
        """(share of the window that the main thread slept until threads of its own process woke it, such sleeps per second); None without
        eBPF."""
        own = [wake for wake in self._woken.get(pid, ()) if wake.pid == pid]
        return (sum(wake.share for wake in own), sum(wake.per_s for wake in own)) if self._woken else None

    def _woken_by(self, board: Board, job: JobFacts) -> dict[int, float]:
        """Pid -> share of the window that the main thread slept until that process woke it, or wrote what another thread reads: by the
        probe, else by the processes it reads from."""
        trainer = job.trainer
        found = self._woken_by_others(trainer.pid) if self._woken else feeders.read_from(trainer)
        own = trainer.own_wakes[0] if trainer.own_wakes is not None else None
        read = feeders.read_by_threads(trainer, board.infos, own, job.idle or 0.0)
        return found | {pid: max(share, found.get(pid, 0.0)) for pid, share in read.items()}

    def _reader(self, board: Board, pid: int, job: JobFacts) -> OutputReader:
        info, worker = board.infos.get(pid), next((worker for worker in job.workers if worker.pid == pid), None)
        cores = worker.cores if worker is not None else self._takers.cores(pid)
        return OutputReader(pid, name_of(board, pid), info is not None and info.ppid == job.trainer.pid, cores)

    def _gpus_of(self, trainer: ProcFacts, trainers: list[ProcFacts], gpus: dict[int, GpuFacts]) -> list[GpuFacts]:
        return [self._part_of(gpu, trainer.pid) if gpu.split else gpu for gpu in self._whole_gpus_of(trainer, trainers, gpus)]

    def _part_of(self, gpu: GpuFacts, pid: int) -> GpuFacts:
        """The MIG instance the process uses, or the only one; without a hint, nothing is measured for it."""
        whole = self._gpus[gpu.index].board
        here = {instance: track for (index, instance), track in self._parts.items() if index == gpu.index}
        for instance, track in here.items():
            if pid in track.pids or len(here) == 1:
                return track.facts(gpu.index, instance, whole.place(instance) if whole is not None else "")
        return replace(gpu, util=None, util_now=None, sm_active=None, power_w=None, unmeasurable=True)

    def _whole_gpus_of(self, trainer: ProcFacts, trainers: list[ProcFacts], gpus: dict[int, GpuFacts]) -> list[GpuFacts]:
        """The trainer's GPUs by NVML's list. If the list names no known trainer (a container): the GPUs in use that it may see, one per
        rank if the numbers match."""
        own = [gpu for gpu in gpus.values() if trainer.pid in gpu.pids]
        known = {other.pid for other in trainers}
        if own or any(known & gpu.pids for gpu in gpus.values()):
            return own
        used = [gpu for gpu in gpus.values() if gpu.pids or gpu.worked_ns]
        if len(trainers) == len(used) > 1:
            order = sorted(trainers, key=lambda proc: (proc.role.rank if proc.role.rank is not None else 1 << 30, proc.pid))
            return [used[order.index(trainer)]]
        return _visible(trainer, gpus) or used or (list(gpus.values()) if len(gpus) == 1 else [])

    def _step(self, job: JobFacts) -> Step | None:
        return step_of(job, self._clocks.get(job.trainer.pid, Clock()), self._rhythm(job))

    def _rhythm(self, job: JobFacts) -> float | None:
        """Steps per second by the first of its GPUs with a clear rhythm; recomputed every `RHYTHM_NS`, for it covers many seconds. None if
        workers are born again and again (the rhythm is the epochs') or without work (it is noise of the power)."""
        if job.births or (job.idle or 0.0) >= policy.AT_END:
            return None
        if self.t_ns - self._rhythm_ns.get(job.trainer.pid, 0) >= RHYTHM_NS and job.calls is None:
            self._rhythm_ns[job.trainer.pid] = self.t_ns
            found = (self._gpus[gpu.index].rhythm.per_s() for gpu in job.gpus if gpu.instance is None)
            self._paces[job.trainer.pid] = next((pace for pace in found if pace is not None), None)
        return self._paces.get(job.trainer.pid)

    def pace(self, trainer_pid: int) -> float | None:
        """Steps per second of a trainer since it began to train, or since its CUDA calls were first probed; None if unknown."""
        return self._clocks.get(trainer_pid, Clock()).per_s(self._points.all_calls(trainer_pid))

    def _recent_births(self, trainer_pid: int) -> list[int]:
        births = self._births.get(trainer_pid, {})
        for pid in [pid for pid, born in births.items() if born < self.t_ns - policy.BIRTHS_NS]:
            del births[pid]
        return sorted(births.values())


def _hidden(board: Board) -> tuple[str, str]:
    source = board.sources.get("procfs")
    if source is None or source.reason not in HIDDEN or who.is_whole_machine(board.infos):
        return "", ""
    return source.reason, HIDDEN[source.reason]


def _visible(trainer: ProcFacts, gpus: dict[int, GpuFacts]) -> list[GpuFacts]:
    """GPUs that CUDA_VISIBLE_DEVICES selects by number; empty if it selects none, or by UUID."""
    chosen = trainer.info.env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [gpus[int(index)] for index in chosen if index.strip().isdecimal() and int(index) in gpus]


def _family(jobs: list[JobFacts], starters: Mapping[int, int]) -> dict[int, int]:
    """Pid of a trainer, of a worker or service, or of a program that one of them started -> pid of the trainer.

    Programs that a trainer with workers started itself load nothing (a sidecar, a packer), and are left out.
    """
    own = {pid: job.trainer.pid for job in jobs for pid in (job.trainer.pid, *(proc.pid for proc in job.workers), *job.services)}
    loads = own.keys() - {job.trainer.pid for job in jobs if job.workers}
    return own | {pid: own[starter] for pid, starter in starters.items() if starter in loads}


def _without_finished(workers: list[ProcFacts]) -> list[ProcFacts]:
    """Workers that still load. Only torch's loader shows which have finished; if all have, all are returned."""
    torchs = any(worker.info.comm == who.TORCH_WORKER for worker in workers)
    return [worker for worker in workers if not (torchs and worker.has_finished)] or workers


def _with_cpus(job: JobFacts, by_label: Mapping[str, float], takers: list[Taker], family: Mapping[int, int]) -> JobFacts:
    """Add the CPUs that the job's processes ran on. ``by_label``: CPUs of its helpers by their label."""
    helpers = sum(by_label.values())
    programs = sum(taker.cores for taker in takers if family.get(taker.pid) == job.trainer.pid)
    used = sum(proc.cores for proc in (job.trainer, *job.workers)) + helpers + programs
    return replace(job, helpers=helpers, compiling=by_label.get(who.COMPILES, 0.0), used=used)
