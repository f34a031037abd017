"""The last seconds of the whole machine: boards go in, the facts of the window come out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from gputop.diagnosis.facts import feeders, gpushares, intensity, transport, waits, wire
from gputop.diagnosis.facts.facts import (
    CpuFacts,
    CudaFacts,
    Facts,
    FeederFacts,
    GpuFacts,
    GpuUseFacts,
    HostFacts,
    JobFacts,
    LifeFacts,
    LoaderFacts,
    LockFacts,
    Member,
    OutputFacts,
    OutputReader,
    Taker,
    awaited_gpus,
)
from gputop.diagnosis.facts.family import part_of
from gputop.diagnosis.facts.gpus import Gpus
from gputop.diagnosis.facts.hosts import HostTrack
from gputop.diagnosis.facts.launches import Launches
from gputop.diagnosis.facts.life import RanksHere, absent_ranks, has_peers, ranks_on
from gputop.diagnosis.facts.paced import is_paced, is_sent_unasked
from gputop.diagnosis.facts.past import Past
from gputop.diagnosis.facts.points import Counted, Points, copied_beside
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.programs import with_programs
from gputop.diagnosis.facts.serving import ServerFacts, Servers
from gputop.diagnosis.facts.starts import held_bytes
from gputop.diagnosis.facts.stepclock import split, step_of
from gputop.diagnosis.facts.takers import TakerTrack, born_ns, name_of
from gputop.diagnosis.facts.traced import trace_of
from gputop.diagnosis.facts.tracks import ProcTrack, some_worked
from gputop.diagnosis.facts.wakes import WakeTrack, Woken
from gputop.findings import policy
from gputop.findings.verdict import FEEDS, READS, SERVES, Step
from gputop.model import roles as who
from gputop.model.board import Board
from gputop.model.collective import CollectiveTracks
from gputop.model.frame import Frame, Met, ProcInfo, ProcSample
from gputop.model.roles import Role
from gputop.model.serving import ServingNow
from gputop.model.stream import HIDDEN

ROLES_NS = 1_000_000_000


class _View(NamedTuple):
    """What `Window.facts` reads once for all jobs."""

    board: Board
    woken: Woken
    children: dict[int, list[int]]  # pid -> pids of its children
    held_bytes: dict[int, float]  # of the GPUs' memory, by pid
    ranks_here: Callable[[], RanksHere]  # `life.ranks_on` of the board, at the first call


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
        self._servers = Servers()
        self._collectives = CollectiveTracks()
        self._served: dict[int, ServerFacts] = {}  # trainer -> the server of its engine
        self._procs: dict[int, ProcTrack] = {}
        self._gpus = Gpus()
        self._host = HostTrack()
        self._wakes = WakeTrack()
        self._takers = TakerTrack()
        self._pasts: dict[int, Past] = {}  # by trainer
        self._roles_ns = 0
        self._seen: tuple[dict[int, ProcInfo], frozenset[int], dict[int, dict[int, int]]] = {}, frozenset(), {}

    def push(self, board: Board, gap_ns: int = policy.GAP_NS) -> bool:
        """Take in the board; False if it is not newer than the last one. After a jump in time by more than ``gap_ns``, or with another
        collector (its probes count from 0), the window begins again."""
        if board.t_ns == self.t_ns:
            return False
        if not 0 < board.t_ns - self.t_ns <= gap_ns or board.seq < self._seq:
            self._clear()
        else:
            self.continues = True
        self.t_ns, self._seq, self._since_ns = board.t_ns, board.seq, self._since_ns or board.t_ns
        self._assign(board)
        self._points.push(board, self.roles)
        oldest = self._points.oldest_ns
        self._launches.forget(oldest, self.roles)
        self._push_procs(board, oldest)
        self._gpus.push(board, oldest)
        self._host.push(board, oldest)
        self._wakes.push(board, oldest)
        self._takers.push(board, self.roles, oldest)
        self._servers.push(board, oldest, (pid for pid, role in self.roles.items() if role.kind == "trainer"))
        self._collectives.push(self.t_ns, board.collectives)
        return True

    def begin(self) -> None:
        """Let paces count from now on."""
        self._points.restart(*(pid for pid, past in self._pasts.items() if past.has_clock))

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
        self._gpus.look(frame.gpus if frame.ticks == 1 else frame.readings)

    def _assign(self, board: Board) -> None:
        fresh, before = self.t_ns - self._roles_ns < ROLES_NS, self._seen[0]
        # A spawned child is named a worker once it has imported torch, and may be gone a second later.
        if fresh and len(board.infos) == len(before) and all(board.infos.get(pid) is before.get(pid) for pid in self.roles):
            return
        infos, pids, contexts = seen = dict(board.infos), board.compute_pids, board.contexts
        if seen[1:] != self._seen[1:] or (infos != before and who.may_differ(_changed(before, infos), infos, self.roles, pids)):
            self.roles = who.assign(infos, pids, contexts)
        self._seen, self._roles_ns = seen, self.t_ns

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
        self._pasts = {pid: past for pid, past in self._pasts.items() if pid in board.procs}

    def _past(self, pid: int) -> Past:
        if (past := self._pasts.get(pid)) is None:
            past = self._pasts[pid] = Past()
        return past

    def _has_ended(self, sample: ProcSample) -> bool:
        """True if the process is a trainer that has ended and was not reaped. (Ended workers matter to their trainer, which is looked
        at.)"""
        return sample.state in waits.ENDED_STATES and self.roles[sample.pid].kind == "trainer"

    def _note_birth(self, sample: ProcSample, board: Board) -> None:
        role = self.roles[sample.pid]
        if role.kind != "worker" or role.trainer_pid is None:
            return
        self._past(role.trainer_pid).note_worker(sample, board)

    def _note_starting(self, board: Board) -> None:
        """Note births of spawned children that have no name yet while there are named workers: workers of a short validation end soon after
        they get it."""
        for pid, role in self.roles.items():
            past, sample = self._pasts.get(role.trainer_pid or 0), board.procs.get(pid)
            if past is None or not past.has_had_workers or sample is None:
                continue
            if role.kind == "helper" and who.is_spawned_child(board.infos[pid]):
                past.note_child(sample, board)

    def _note_name(self, track: ProcTrack, info: ProcInfo, role: Role) -> None:
        if info.comm == who.TORCH_WORKER and role.trainer_pid is not None:
            self._past(role.trainer_pid).named = True
        elif role.kind == "worker" and role.trainer_pid in self._pasts and self._pasts[role.trainer_pid].named:
            track.began_ns = self.t_ns

    def shares(self) -> dict[tuple[str, int], tuple[float, ...]]:
        """Activity of each process of a job and each GPU in the window, in comparable shares: ``proc`` and pid, or ``gpu`` and index ->
        `ProcTrack.shares` or `GpuTrack.shares`."""
        procs = {("proc", pid): track.shares() for pid, track in self._procs.items()}
        return procs | {("gpu", index): shares for index, shares in self._gpus.shares().items()}

    def parties(self, board: Board) -> dict[tuple[str, int], object]:
        """What changes at once rather than by degrees: role, description, and whether it is stopped or has ended, of each process of a job;
        whether each GPU answers; which traces there are."""
        halted = waits.STOPPED_STATES + waits.ENDED_STATES
        states = {pid: board.procs[pid].state for pid in self._procs}
        procs = {("proc", pid): (self.roles[pid], board.infos.get(pid), state in halted and state) for pid, state in states.items()}
        traces = {("trace", pid): t_ns for pid, (t_ns, _) in board.traces.items()}
        return procs | traces | {("gpu", index): (gpu.lost, gpu.silent_s is None) for index, gpu in board.gpus.items()}

    def servings(self) -> list[ServingNow]:
        """All inference servers, as their own metrics have them at the last push."""
        return self._servers.now()

    def gpu_util(self, index: int) -> float | None:
        """The latest utilization of a GPU, as a share; None if its last reading is old."""
        return self._gpus.util_now(index)

    def facts(self, board: Board) -> Facts:
        """The window's facts, before the graph adds its own."""
        seconds, gpus, host = (self.t_ns - self._points.oldest_ns) / 1e9, self._gpus.facts(board), self._host.facts(board)
        held, ranks_here = held_bytes(board.gpus.values()), cache(lambda: ranks_on(board))
        view = _View(board, Woken(self._wakes.by_thread()), who.by_parent(board.infos), held, ranks_here)
        behind = self._takers.behind()
        takers, helpers, watching = self._takers.facts(board, self.roles, behind, self._points.oldest_ns)
        jobs = [self._complete(job, view, host) for job in self._jobs(view, gpus)]
        fed = {pid: job.trainer.pid for job in jobs for pid in job.feeders.pids}
        starters = self._takers.starters(self.roles, fed)
        jobs = with_programs(jobs, self._takers, starters, fed, board, self.roles, self._points.oldest_ns)
        others = self._takers.others(board, self.roles)
        jobs = [self._with_members(job, board, others) for job in jobs]
        self._served = self._servers.of_jobs(board, [job.trainer.pid for job in jobs])
        family = {part.pid: pid for pid, server in self._served.items() for part in server.parts}
        family |= {one.pid: job.trainer.pid for job in jobs for one in job.members} | _family(jobs, starters) | fed
        jobs = intensity.with_kin([_with_cpus(job, helpers.get(job.trainer.pid, {}), takers, family) for job in jobs])
        jobs = gpushares.with_neighbours([self._alive(job, view, len(gpus)) for job in jobs], board, family)
        late_for = {word for job in jobs for proc in (job.trainer, *job.workers) for word in (*proc.kinds, *proc.threads_met)}
        pressed, wires = any(job.limits.pressed for job in jobs), wire.uses_of(jobs)
        return Facts(
            t_ns=self.t_ns, seconds=seconds, jobs=jobs, host=host, gpus=list(gpus.values()), takers=takers, probed=bool(board.threads),
            switch_share=board.switch_share,
            feeds=len(self._points), behind=behind, family=family,
            movers=self._takers.movers(self.roles, fed, self._points.oldest_ns) if waits.DISK in late_for else [],
            growers=self._takers.growers(board, self.roles, fed) if pressed or waits.DISK in late_for else [], watching=watching,
            unseen=self._gpus.unheld(gpus, self._points.oldest_ns), hidden=_hidden(board),
            unanswered=not board.gpus and "nvml" in board.sources and board.sources["nvml"].state == "partial",
            probes_load="ebpf" in board.sources and board.sources["ebpf"].state == "partial",
            watched_s=(self.t_ns - self._since_ns) / 1e9, wakes=view.woken.by_tid, pids=frozenset(board.infos),
            threads=self._wakes.threads(), main_calls=self._wakes.main_calls(), file_servers=self._file_servers(view),
            wires=wires, ways=transport.ways_of(jobs, wires, host.ports), servings=self.servings(),
            servers=self._served, collectives=self._collectives.now(),
        )  # fmt: skip

    def _file_servers(self, view: _View) -> dict[int, str]:
        """The value of `Facts.file_servers`."""
        woken = [wake for pid in self._procs for wake in view.woken.by_tid.get(pid, ()) if wake.kind == waits.DISK]
        pids = {wake.pid for wake in woken if wake.share >= policy.HARDLY} - self._procs.keys()
        infos = {pid: view.board.infos[pid] for pid in sorted(pids) if pid in view.board.infos}
        return {pid: who.program_name(info) for pid, info in infos.items() if info.cmdline}  # the kernel's threads have no command

    def _with_members(self, job: JobFacts, board: Board, others: frozenset[int]) -> JobFacts:
        """Add the job's family outside its own tree. ``others``: pids that cannot be members, for they are jobs' own."""
        known = self._past(job.trainer.pid).family
        known.note(job, board.infos, others)
        kinds, of_server, members = waits.kinds(board.header.machine), waits.kinds_of_server(board.header.machine), list[Member]()
        read = {*job.trainer.info.other_ends, *(pid for one in known.near for pid in board.infos[one].other_ends)}
        is_answered = job.trainer.rest_s < policy.PAUSE_S  # else threads may work for others: a server that nobody asks tidies its journal
        for pid in (*known.near, *known.behind):
            part, cores = part_of(pid, job, board.infos), self._takers.cores(pid) or 0.0
            kind_of = of_server if part == SERVES else kinds
            met, ready, locked_by = self._takers.waits_of(pid, kind_of, self._points.oldest_ns, is_answered)
            asks = known.asked_by(pid, job.trainer.pid, board.infos)
            paced, unasked = self._pace(pid, cores, met, board) if pid in read and part == FEEDS else (False, False)
            arriving = self._takers.arriving(pid, self._points.oldest_ns)
            members.append(Member(
                pid, name_of(board, pid), part, pid in known.near, cores, ready, met, asks, paced, unasked, locked_by, arriving,
                *self._takers.pages_of(pid, self._points.oldest_ns),
            ))  # fmt: skip
        awaited = [one for one in members if one.part != READS]
        stopped = {one.pid: one.name for one in awaited if one.met[waits.STOPPED] >= policy.HALF * one.met.total() > 0}
        if not members:
            return job
        holders = {pid: name_of(board, pid) for one in awaited if (pid := one.locked_out[0])}
        return replace(
            job, members=members, programs=replace(job.programs, stopped=job.programs.stopped | stopped),
            locks=replace(job.locks, holders=holders | job.locks.holders),
        )  # fmt: skip

    def _pace(self, pid: int, cores: float, met: Counter[str], board: Board) -> tuple[bool | None, bool]:
        """The values of `Member.paced` and `Member.by_senders`."""
        info, samples = board.infos[pid], self._takers.samples_of(pid)
        if (paced := is_paced(info, cores, samples, board.infos.values(), board.header.machine)) is not False:
            return paced, False
        unasked = is_sent_unasked(info, cores, met, samples)
        return unasked, bool(unasked)

    def _alive(self, job: JobFacts, view: _View, gpus: int) -> JobFacts:
        """Add the job's signs of life, and the ranks that are missing while it shows none."""
        job = self._past(job.trainer.pid).alive(job, view.board, self.roles, view.children)
        return replace(job, ranks=replace(job.ranks, absent=absent_ranks(job, view.ranks_here, gpus)))

    def _jobs(self, view: _View, gpus: dict[int, GpuFacts]) -> list[JobFacts]:
        """Jobs with the facts that their own processes and GPUs provide."""
        procs: dict[int, ProcFacts] = {}
        workers: dict[int, list[ProcFacts]] = {}
        managers: dict[int | None, list[ProcFacts]] = {}
        for pid, track in self._procs.items():
            role, info = self.roles.get(pid), view.board.infos.get(pid)
            if role is None or info is None:
                continue
            self._note_name(track, info, role)
            own_wakes = view.woken.by_own(pid) if role.kind == "trainer" else None
            procs[pid] = facts = track.facts(info, role, own_wakes)
            if role.kind == "worker" and role.trainer_pid is not None:
                workers.setdefault(role.trainer_pid, []).append(facts)
            elif role.label == who.MANAGER:
                managers.setdefault(role.trainer_pid, []).append(facts)
        trainers = [facts for facts in procs.values() if facts.role.kind == "trainer"]
        used = {trainer.pid: self._gpus.of(trainer, trainers, gpus) for trainer in trainers}
        pools = {pid: sorted(own, key=lambda worker: worker.role.index or 0) for pid, own in workers.items()}
        services = [(one, _without_finished(pools.get(one.pid, []))) for one in trainers if not used[one.pid]]
        return [self._job(view, one, used[one.pid], pools.get(one.pid, []), managers.get(one.pid, []), services) for one in trainers]

    def _job(
        self, view: _View, trainer: ProcFacts, used: list[GpuFacts], own: list[ProcFacts], managers: list[ProcFacts],
        services: list[feeders.Service],
    ) -> JobFacts:  # fmt: skip
        """A trainer with its ``own`` workers; without any, with those of the ``services`` that it waits for."""
        calls, working = self._points.calls(trainer.pid, used), _without_finished(own)
        cuda = CudaFacts(calls, self._points.sampled(trainer.pid) if calls is None else None)
        job = JobFacts(trainer, working, used, managers, cuda=cuda, loader=LoaderFacts(finished=len(own) - len(working)))
        if own or not used or not services:
            return job
        lending = feeders.lending(services, _woken_by(view, job))
        workers = [worker for service, theirs in lending for worker in feeders.loaders_of(service, theirs)]
        return replace(job, workers=workers, feeders=FeederFacts(services=frozenset(service.pid for service, _ in lending)))

    def _complete(self, job: JobFacts, view: _View, host: HostFacts) -> JobFacts:
        """Add what other subjects know about a job, and what follows from its GPUs' idle time, its workers' births and its feeders."""
        pid, oldest_ns, past = job.trainer.pid, self._points.oldest_ns, self._past(job.trainer.pid)
        board, start = view.board, past.start(job, view.board, self._since_ns, view.held_bytes.get(pid, 0.0))
        before_s = start.before_s(oldest_ns, self.t_ns)
        if before_s is None or not start.first_ns:  # its GPUs' earlier work was for others, or a start
            job = replace(job, gpus=[replace(gpu, stretch_s=0.0, breaks_s=0.0, sunk_s=0.0, dips_s=0.0, pauses=()) for gpu in job.gpus])
        readers = feeders.readers(job.trainer, view.woken.by_pid(pid))
        job = replace(
            job, gpu_use=self._gpu_use(job), loader=past.loader(job, start, board), feeders=self._feeders(view, job, readers),
            output=self._output(view, job, readers), locks=self._locks(view, job), find_step=self._step,
            life=LifeFacts(before_s=before_s, unbegun_s=0.0 if start.first_ns else (self.t_ns - start.born_ns) / 1e9),
        )  # fmt: skip
        job = replace(
            job, loader=past.respawned(job, self._points.calls_made(pid), oldest_ns, self.t_ns),
            pauses=past.pauses(job, self._points.quiet(pid), oldest_ns, self.t_ns),
            cuda=self._cuda(board, job), trace=trace_of(board, pid),
            limits=self._points.limits(job, board, host.psi_memory or 0.0, (*past.family.near, *past.family.behind)),
        )  # fmt: skip
        if before_s is None:
            self._points.restart(pid)
        elif job.cuda.calls is not None:
            past.has_clock = True
            past.clock.note(job.cuda.calls)
        return job

    def _cuda(self, board: Board, job: JobFacts) -> CudaFacts:
        """CUDA calls by probes, else by samples."""
        launches = board.launches.get(job.trainer.pid)
        counted = CudaFacts(job.cuda.calls, launches_per_s=launches.per_s if launches is not None else None)
        if counted.calls is not None:
            return counted if job.idle is None else replace(counted, calls=copied_beside(counted.calls, job.idle))
        if (sampled := job.cuda.sampled) is None:
            return counted
        busy = [track.busy for track in self._gpus.tracks(job.gpus, parts=True)]
        sampled = replace(sampled, idle_beside_launches=self._launches.idle_beside(job.trainer.pid, busy))
        return CudaFacts(sampled=sampled, launches_per_s=sampled.launch / policy.LAUNCH_S)

    def _gpu_use(self, job: JobFacts) -> GpuUseFacts:
        """Turns of a job with several GPUs: its step may go from one GPU to the next.

        Some GPU worked at least as long as readings show, or as the trainer was seen to wait; and at most as long as all together.
        """
        utils = [gpu.util for gpu in job.gpus if gpu.util is not None]
        if len(utils) < 2 or job.idle is None:
            return GpuUseFacts()
        tracks = self._gpus.tracks(job.gpus)
        seen = some_worked(tracks, self._points.oldest_ns) if len(tracks) == len(utils) else None
        least, most = seen or (0.0, min(1.0, sum(utils)))
        awaited = awaited_gpus(job, self._wakes.main_calls().get(job.trainer.pid, 1.0))
        worked, together = max(*utils, least, min(most, awaited)), 1.0 - job.idle
        return GpuUseFacts(max(0.0, worked - together), 0.0 if job.cuda.calls is not None else max(0.0, most - worked))

    def note_pauses(self, job: JobFacts) -> None:
        """Remember the pauses of a job with the verdict pause: see `PauseFacts.repeated`."""
        self._past(job.trainer.pid).note_pauses(job.pauses.spans, self.t_ns)

    def _feeders(self, view: _View, job: JobFacts, readers: list[int]) -> FeederFacts:
        """Feeders of a trainer without workers; the ``readers`` of its output are none."""
        if job.workers:
            return job.feeders
        woken_by = {pid: share for pid, share in _woken_by(view, job).items() if pid not in readers}
        return FeederFacts(woken_by, feeders.feeding(woken_by, view.board.infos, self._procs), job.feeders.services)

    def _output(self, view: _View, job: JobFacts, readers: list[int]) -> OutputFacts:
        last = job.trainer.newer
        unheard = waits.is_unheard(view.board.header.machine, last.syscall, last.syscall_arg, last.wchan)
        found = [self._reader(view.board, pid, job) for pid in readers]
        if not view.woken:  # whoever inherited the other end has it, too; the one that works at what it has read keeps the others waiting
            found.sort(key=lambda one: -(one.cores or 0.0))
        return OutputFacts(found, job.trainer.still_s >= policy.STUCK_S and unheard)

    def _locks(self, view: _View, job: JobFacts) -> LockFacts:
        locked = [*job.workers, *([job.trainer] if job.trainer.kept_out(waits.LOCK) else [])]
        holders = {pid: name_of(view.board, pid) for proc in locked if (pid := proc.locked_out[0])}
        return LockFacts(holders, self._rivals(job.trainer, view.woken))

    def _rivals(self, trainer: ProcFacts, woken: Woken) -> dict[int, float]:
        """Other trainers -> share of the window until they released the lock this one slept at. Collectives are excluded: they wake by the
        kernel or own threads. Without the probe any of those may have it that samples met at the same lock in shared memory."""
        asked = sum(trainer.kinds.get(kind, 0.0) for kind in (waits.PIPE, waits.NETWORK, waits.POLL))
        if trainer.kinds.get(waits.LOCK, 0.0) <= asked:
            return {}
        if not woken and not trainer.shared_futexes:
            return {}
        others = [pid for pid in self._procs if pid != trainer.pid and (role := self.roles.get(pid)) and role.kind == "trainer"]
        if not woken:
            return self._rivals_by_samples(trainer, others)
        shares = woken.by_pid(trainer.pid)
        return {pid: shares[pid] for pid in others if shares.get(pid, 0.0) > 0.0}

    def _rivals_by_samples(self, trainer: ProcFacts, others: list[int]) -> dict[int, float]:
        """The value of `LockFacts.rivals`, by the locks in shared memory at which the trainers slept."""
        met = {pid: self._procs[pid].shared_futexes for pid in others}
        at = [futex for futex in trainer.shared_futexes if any(known[futex] for known in met.values())]
        times = sum(trainer.shared_futexes[futex] for futex in at)
        rivals = [pid for pid, known in met.items() if any(known[futex] for futex in at)]
        if times < policy.SEVERAL or not rivals:
            return {}
        share = trainer.kinds.get(waits.LOCK, 0.0) * min(1.0, times / max(1, trainer.met_at_locks)) / len(rivals)
        return dict.fromkeys(rivals, share)

    def _reader(self, board: Board, pid: int, job: JobFacts) -> OutputReader:
        info, worker = board.infos.get(pid), next((worker for worker in job.workers if worker.pid == pid), None)
        cores = worker.cores if worker is not None else self._takers.cores(pid)
        return OutputReader(pid, name_of(board, pid), info is not None and info.ppid == job.trainer.pid, cores)

    def _step(self, job: JobFacts, data: float) -> Step | None:
        past, server = self._past(job.trainer.pid), self._served.get(job.trainer.pid)
        if server is not None and server.steps_per_s > 0.0:
            return split(server.steps_per_s, "the server's metrics", job.trainer.state.fractions)
        together = self._points.copies_at_once(job.trainer.pid) if has_peers(job) else None
        return step_of(job, past.clock, past.rhythm(job, self._gpus.tracks(job.gpus), self.t_ns), data, together)

    def counted(self, trainer_pid: int) -> Counted | None:
        """Counters of a trainer's CUDA calls by which its steps are counted; None if they are not probed."""
        return self._points.counted(trainer_pid)

    def pace(self, trainer_pid: int) -> float | None:
        """Steps per second of a trainer since it began to train, or since its CUDA calls were first probed; None if unknown."""
        return self._past(trainer_pid).clock.per_s(self._points.all_calls(trainer_pid))


def _woken_by(view: _View, job: JobFacts) -> dict[int, float]:
    """Pid -> share of the window that the main thread slept until that process woke it, or wrote what another thread reads: by the probe,
    else by the processes it reads from."""
    trainer = job.trainer
    found = view.woken.by_others(trainer.pid) if view.woken else feeders.read_from(trainer)
    if (holder := trainer.lock_holder) and holder in found:
        found[holder] -= sum(one.share for one in view.woken.by_tid.get(trainer.pid, ()) if one.pid == holder and one.kind == waits.LOCK)
    own = trainer.own_wakes[0] if trainer.own_wakes is not None else None
    read = feeders.read_by_threads(trainer, view.board.infos, view.children.get(trainer.pid, ()), own, job.idle or 0.0)
    return found | {pid: max(share, found.get(pid, 0.0)) for pid, share in read.items()}


def _changed(before: Mapping[int, ProcInfo], infos: Mapping[int, ProcInfo]) -> Iterator[ProcInfo]:
    """Identities of the processes that came, ended, or changed in what decides roles, before and after."""
    for pid, info in before.items():
        now = infos.get(pid)
        if now is None:
            yield info
        elif now is not info and not who.is_alike(info, now):
            yield from (info, now)
    yield from (info for pid, info in infos.items() if pid not in before)


def _hidden(board: Board) -> tuple[str, str]:
    source = board.sources.get("procfs")
    if source is None or source.reason not in HIDDEN or who.is_whole_machine(board.infos):
        return "", ""
    return source.reason, HIDDEN[source.reason]


def _family(jobs: list[JobFacts], starters: Mapping[int, int]) -> dict[int, int]:
    """Pid of a trainer, of a worker or service, or of a program started by any -> pid of the trainer.

    Programs that a trainer with workers started itself load nothing (a sidecar, a packer), and are left out.
    """
    own = {pid: job.trainer.pid for job in jobs for pid in (job.trainer.pid, *(proc.pid for proc in job.workers), *job.feeders.services)}
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
    return replace(job, cpus=CpuFacts(used, helpers, by_label.get(who.COMPILES, 0.0)))
