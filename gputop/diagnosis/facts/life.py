"""Signs of life: since when nothing of a job has moved. This module defines movement; `gputop.diagnosis.hangs` judges the standstill.

Work is CPU time of a main thread or of threads other than the driver's, bytes read or written, wakes of a main thread except by a timer
and of threads by the network or a disk, a worker that begins or ends, a CUDA call, and kernels that use their GPU. No work are heartbeats
(a watchdog, a queue that checks every 5 s that its loader lives) and waits for the GPU: CPU spun in a synchronize, and one endless
kernel on few SMs if there are other ranks (a collective that waits for them). Programs that a trainer started itself count only while its
main thread waits for programs: a sidecar works on during any hang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import JobFacts
from gputop.diagnosis.facts.intensity import is_light
from gputop.diagnosis.facts.proc import WATCHERS, ProcFacts
from gputop.findings import policy
from gputop.model.board import Board
from gputop.model.frame import ProcInfo, ProcSample
from gputop.model.identity import JobKey, job_key
from gputop.model.roles import COMPILES, SIZE_VARIABLES, Role, number_in, rank_of

_BY_ITSELF = (waits.TIMER, waits.DRIVER)  # a thread that wakes from these was not woken by another
_BY_OTHERS = (waits.NETWORK, waits.DISK)
"""Wakes of threads from these waits move something: an upload, a download. A poll may wake by its time limit alone (gloo's loop: 10 ms)."""
_FOR_PROGRAMS = (waits.PIPE, waits.CHILD, waits.POLL, waits.NETWORK)


class _WorkCounters(Struct, frozen=True):
    """One process's counters that show work."""

    main_ns: int  # CPU time of its main thread, less the time it spun
    others_ns: int  # CPU time of its other threads without `WATCHERS`
    bytes: int
    wakes: int  # of its main thread
    moved: int  # wakes of other threads from `_BY_OTHERS`


class Pulse(Struct):
    """Signs of life of one trainer with its workers and programs."""

    t_ns: int  # of the last look
    since_ns: int  # CLOCK_MONOTONIC, since when nothing has moved
    began_ns: int  # of the first look
    first: dict[int, _WorkCounters] = field(default_factory=dict)  # by pid, when everything stopped moving
    last: dict[int, _WorkCounters] = field(default_factory=dict)  # by pid, at the last look
    loaders: set[int] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=dict)
    watchers: dict[int, int] = field(default_factory=dict)  # tid of a thread of `WATCHERS` -> CPU time: samples omit resting threads
    vols: dict[int, int] = field(default_factory=dict)  # tid of any other thread -> voluntary switches
    woken: dict[int, int] = field(default_factory=dict)  # pid -> wakes of its threads from `_BY_OTHERS`

    def note(self, job: JobFacts, board: Board, roles: Mapping[int, Role], children: Mapping[int, Sequence[int]]) -> JobFacts:
        """Take in a look; return the job with the time since its last move, and whether its main thread may spin."""
        ns, self.t_ns = board.t_ns - self.t_ns, board.t_ns
        pid, procs = job.trainer.pid, (job.trainer, *job.workers)
        sampled, calls = board.sampled.get(pid), {name: call for (caller, name), call in board.calls.items() if caller == pid}
        marks = {proc.pid: _mark(proc.newer, *self._of_threads(proc)) for proc in procs}
        if sampled is not None:
            marks[pid] = replace(marks[pid], main_ns=marks[pid].main_ns - sampled.sync_ns)
        in_call = any(call.inflight_ns >= ns > 0 for call in calls.values())
        may_spin = not in_call and self._may_spin(job, marks[pid], ns)
        counts, loaders = {name: call.count for name, call in calls.items()}, set(marks)
        moves = loaders != self.loaders or (bool(self.calls) and counts != self.calls) or _gpus_work(job)
        moves = moves or any(self._has_worked(proc, marks[proc.pid], in_call or may_spin) for proc in procs)
        if not moves:
            programs = {sample.pid: _mark(sample) for sample in _programs(job, board, roles, children)}
            moves = any(self._ran(one, mark) or self._woke(one, mark) for one, mark in programs.items())
            marks |= programs
        self.since_ns, self.first = (board.t_ns, marks) if moves else (self.since_ns, marks | self.first)
        self.last, self.loaders, self.calls = marks, loaders, counts
        from_the_first = self.since_ns == self.began_ns
        return replace(job, life=replace(job.life, still_s=self._still_s, from_the_first=from_the_first, may_spin=may_spin))

    def _of_threads(self, proc: ProcFacts) -> tuple[int, int]:
        """(CPU time so far of the threads of `WATCHERS`, in ns; how often the network or a disk has woken any other thread)."""
        tids = {thread.tid for thread in proc.info.threads if thread.comm.startswith(WATCHERS)}
        for thread in proc.newer.threads:
            if thread.tid in tids:
                self.watchers[thread.tid] = thread.oncpu_ns
            elif thread.tid != proc.pid and thread.vol is not None:
                woken = thread.vol - self.vols.get(thread.tid, thread.vol)
                self.vols[thread.tid] = thread.vol
                if proc.kind_of("S", thread.syscall, thread.syscall_arg, thread.wchan) in _BY_OTHERS:
                    self.woken[proc.pid] = self.woken.get(proc.pid, 0) + woken
        return sum(self.watchers.get(tid, 0) for tid in tids), self.woken.get(proc.pid, 0)

    def _may_spin(self, job: JobFacts, mark: _WorkCounters, ns: int) -> bool:
        """True if the main thread's CPU time may be a wait for its GPU: neither probes nor samples can show it."""
        before = self.last.get(job.trainer.pid)
        if before is None or job.cuda.calls is not None or job.cuda.sampled is not None or not in_kernel(job):
            return False
        return mark.main_ns - before.main_ns >= policy.NEARLY_ALL * ns and mark.wakes - before.wakes <= policy.ASKS_PER_S * policy.STUCK_S

    def _has_worked(self, proc: ProcFacts, mark: _WorkCounters, for_gpu: bool) -> bool:
        """True if a process has worked since everything stopped, or since the last look; while it waits ``for_gpu``, a trainer's main
        thread does not count."""
        moved = mark.moved - self.first[proc.pid].moved >= policy.ASKS_PER_S * (policy.STUCK_S + self._still_s)
        if moved or self._ran(proc.pid, mark, others=True):
            return True
        if for_gpu and proc.role.kind == "trainer":
            return False
        return self._ran(proc.pid, mark) or (not is_mostly(proc, *_BY_ITSELF) and self._woke(proc.pid, mark))

    def _woke(self, pid: int, mark: _WorkCounters) -> bool:
        return mark.wakes - self.first.get(pid, mark).wakes >= policy.ASKS_PER_S * (policy.STUCK_S + self._still_s)

    def _ran(self, pid: int, mark: _WorkCounters, others: bool = False) -> bool:
        """True if a process ran, read or wrote more than a heartbeat does; ``others``: leave out its main thread."""
        first, last = self.first.get(pid, mark), self.last.get(pid, mark)
        ns = mark.others_ns - first.others_ns + (0 if others else mark.main_ns - first.main_ns)
        burst = mark.others_ns - last.others_ns >= policy.OTHERS_BURST_NS or (not others and mark.main_ns - last.main_ns >= policy.BURST_NS)
        moved = mark.bytes - first.bytes >= policy.IO_BYTES_PER_S * (policy.STUCK_S + self._still_s)
        return burst or moved or ns >= policy.BURST_NS + policy.LITTLE * self._still_s * 1e9

    @property
    def _still_s(self) -> float:
        return (self.t_ns - self.since_ns) / 1e9


def is_mostly(proc: ProcFacts, *kinds: str) -> bool:
    """True if a process's main thread mostly waits for ``kinds``. A poller that others keep from its CPU after each short sleep counts as
    polling."""
    return sum(proc.kinds.get(kind, 0.0) for kind in kinds) >= policy.HALF * (1.0 - min(1.0, proc.runnable)) > 0.0


def in_kernel(job: JobFacts) -> bool:
    """True if a GPU of the job runs, without a pause, a kernel that uses little of the GPU, like a collective that waits for its ranks."""
    return has_peers(job) and any((gpu.util_now or 0.0) >= policy.MOST and is_light(gpu) for gpu in job.gpus)


def sees_gpus(job: JobFacts) -> bool:
    """True if the activity of the job's GPUs for the job is known; the work of a GPU that several processes share counts for none of
    them."""
    return bool(job.gpus) and all(gpu.util_now is not None and (len(gpu.pids) < 2 or gpu.util_now <= policy.LITTLE) for gpu in job.gpus)


def has_peers(job: JobFacts) -> bool:
    """True if the job is one of several ranks, on this host or on others."""
    return len(job.ranks.kin) > 1 or (job.trainer.role.rank is not None and ranks(job) > 1)


def ranks(job: JobFacts) -> int:
    """Number of ranks by the launcher's environment; 0 if it gives none."""
    return number_in(job.trainer.info.env, SIZE_VARIABLES) or 0


def _gpus_work(job: JobFacts) -> bool:
    """True if the job's GPUs work for it; work of a GPU that several processes share does not count."""
    waits_for_ranks = has_peers(job)
    for gpu in job.gpus:
        util = gpu.util_now or 0.0
        if util > policy.LITTLE and len(gpu.pids) < 2 and not (waits_for_ranks and util >= policy.MOST and is_light(gpu)):
            return True
    return False


def _mark(sample: ProcSample, watched_ns: int = 0, moved: int = 0) -> _WorkCounters:
    count = (sample.rchar_bytes or 0) + (sample.read_bytes or 0) + (sample.write_bytes or 0)  # of mapped files: the second alone
    main_ns = sample.oncpu_ns or 0
    return _WorkCounters(main_ns, sample.utime_ns + sample.stime_ns - main_ns - watched_ns, count, sample.vol or 0, moved)


def _programs(
    job: JobFacts, board: Board, roles: Mapping[int, Role], children: Mapping[int, Sequence[int]]
) -> Iterator[ProcSample]:
    """Samples of the programs that the job's workers started, and that the trainer started if it waits for programs or they compile for
    it."""
    loaders = {proc.pid for proc in (job.trainer, *job.workers)}
    awaited = is_mostly(job.trainer, *_FOR_PROGRAMS)
    above = [*loaders]
    while above:
        parent = above.pop()
        for pid in children.get(parent, ()):
            role = roles.get(pid)
            compiles = role is not None and role.label == COMPILES
            if pid in loaders or (role is not None and role.kind == "trainer") or (parent == job.trainer.pid and not (awaited or compiles)):
                continue
            above.append(pid)
            if pid in board.procs:
                yield board.procs[pid]


RanksHere = dict[JobKey | int, set[int]]  # training -> its ranks on this host
_MOST_RANKS = 4096  # ranks on a host: more must be a mistake


def absent_ranks(job: JobFacts, ranks_here: Callable[[], RanksHere], gpus: int) -> tuple[int, ...]:
    """Ranks of the job's training that should be on this host, which has ``gpus`` GPUs, and are not, if the job is a rank that stands
    still. ``ranks_here`` is called only then: it looks at all processes."""
    info = job.trainer.info
    if job.trainer.role.rank is None or job.life.still_s < policy.NAPPED_S or ranks(job) < 2:
        return ()
    there = ranks_here().get(_training(info), set())
    return tuple(rank for rank in _expected(info, there, ranks(job), gpus) if rank not in there)


def _training(info: ProcInfo) -> JobKey | int:
    """The training that a process is a rank of; only its size if no better key is known."""
    key = job_key(info)
    return key if key is not None and key.is_certain else number_in(info.env, SIZE_VARIABLES) or 0


def ranks_on(board: Board) -> RanksHere:
    """The live ranks of each training on this host."""
    found: RanksHere = {}
    for pid, proc in board.procs.items():
        info = board.infos.get(pid)
        rank = rank_of(info) if info is not None and proc.state not in waits.ENDED_STATES else None
        if info is not None and rank is not None:
            found.setdefault(_training(info), set()).add(rank)
    return found


def _expected(info: ProcInfo, there: set[int], size: int, gpus: int) -> Iterable[int]:
    """Ranks expected here: the launcher's count; else all, if each has a GPU here and no Slurm spread them; else those between the ranks
    seen."""
    rank, local, local_size = rank_of(info), number_in(info.env, ("LOCAL_RANK",)) or 0, number_in(info.env, ("LOCAL_WORLD_SIZE",)) or 0
    if rank is not None and 0 < local_size <= _MOST_RANKS:
        return range(max(0, rank - local), rank - local + local_size)
    if size <= gpus and "WORLD_SIZE" in info.env and "SLURM_JOB_ID" not in info.env:
        return range(size)
    return range(min(there), min(max(there) + 1, min(there) + _MOST_RANKS)) if there else ()


def may_spin(job: JobFacts) -> bool:
    """True if apparent computing may be spinning waits for the GPU: calls are not probed, the main thread is not sampled, and it sleeps for
    far less time than the GPU works."""
    if job.cuda.calls is not None or job.cuda.sampled is not None or job.idle is None:
        return False
    return job.trainer.asleep <= max(policy.LITTLE, policy.SOME * (1.0 - job.idle))
