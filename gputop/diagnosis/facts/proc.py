"""Facts of one trainer or worker over the window: shares are 0..1 of the window, times are seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gputop.diagnosis.facts.waits import LOCK, NETWORK, ONCPU, PIPE, POLL, UNKNOWN, KindOf, is_accepting, is_remote_file, is_unread
from gputop.findings import policy
from gputop.findings.verdict import ProcState
from gputop.model.frame import ProcInfo, ProcSample, ThreadSample
from gputop.model.identity import JobKey, job_key
from gputop.model.rates import counter_per_s, thread_deltas
from gputop.model.roles import Role
from gputop.model.syscalls import is_fuse

FOR_EVER, SOME = -1, 0  # ``syscall_arg`` of a futex call without a time limit, and with one
NO_STATE = ProcState(0, "running")
TURN, ASKING = "turn", "asking"
"""Words for what a thread was met at. TURN: a lock with a time limit (Python's GIL). ASKING: a poll by threads that together wake at least
as often as their main thread (or, alone in the process while it sleeps at a lock, more often than a heartbeat), i.e. they wait for an
answer."""
_NOBODY: Counter[str] = Counter()
AUTOGRAD, DRIVER = "pt_autograd", "cuda"
"""Beginnings of the names of threads that launch the backward pass, and of threads of CUDA's driver."""
WATCHERS = (DRIVER, "NCCL", "pt_nccl", "pt_tcpstore")  # beginnings of the names of threads that run on during any hang


class ProcFacts(Struct, frozen=True, dict=True):
    """One trainer or worker over the window."""

    pid: int
    older: ProcSample
    newer: ProcSample
    info: ProcInfo
    role: Role
    seconds: float  # observed: shorter than the window for a young process
    run: float  # on-CPU share of its main thread
    runnable: float  # run-queue share of its main thread
    cores: float  # CPUs the whole process ran on
    kinds: dict[str, float]  # what its main thread slept on (words of `facts.waits`) -> share of the window
    unsampled: bool = False  # no sample found it asleep
    began_ns: int = 0  # when first seen, or last seen without the name that torch's workers take once they are ready
    still_s: float = 0.0  # how long, up to now, its main thread has neither run nor switched
    threaded: ProcSample | None = None
    """The oldest sample of the window with threads; they are read one by one only once the process's role is known."""
    children: float = 0.0  # CPUs of children that it reaped in the window, each counted from the child's birth
    samples: Sequence[ProcSample] = ()  # one per feed; they have more than ``kinds``
    kind_of: KindOf = lambda *_: UNKNOWN
    futex: frozenset[int] = frozenset()  # the system call's number on its machine
    programs: tuple[float, float] = (0.0, 0.0)
    """(CPUs that its live child programs ran on, CPUs that their main threads waited for)."""
    grown_bytes: int = 0  # growth of its resident memory since it was first seen
    own_wakes: tuple[float, float] | None = None
    """(share of the window that the main thread slept until other threads of its process woke it, such sleeps per second); None without the
    probe."""
    shared_futexes: Counter[int] = field(default_factory=Counter)  # futexes between processes at which looks met its main thread
    met_at_locks: int = 0  # looks that met its main thread at a lock
    state: ProcState = NO_STATE  # by the wait-for graph

    @cached_property
    def training(self) -> JobKey | None:
        """The training that the process is a rank of, by its environment; None if that names none."""
        return job_key(self.info)

    @property
    def cpu_s(self) -> float:
        """CPU time of the whole process."""
        return self.cores * self.seconds

    @property
    def rest_s(self) -> float:
        """Longest time in the window in which the main thread neither ran nor switched, in seconds."""
        longest, since, before = 0, self.older.t_ns, self.older
        for sample in self.samples:
            if (sample.vol, sample.oncpu_ns) != (before.vol, before.oncpu_ns):
                since = sample.t_ns
            longest, before = max(longest, sample.t_ns - since), sample
        return longest / 1e9

    def away_from(self, cpus: frozenset[int]) -> float | None:
        """Share of the looks that found that its main thread last ran on none of these CPUs; None if no look shows where it ran."""
        ran = [sample.processor for sample in self.samples if sample.processor is not None]
        return sum(cpu not in cpus for cpu in ran) / len(ran) if ran else None

    @property
    def majflt_per_s(self) -> float:
        """Major page faults per second; 0 if they are not read."""
        return max(0, (self.newer.majflt or 0) - (self.older.majflt or 0)) / self.seconds

    @property
    def system(self) -> float:
        """CPUs used in kernel mode."""
        return max(0, self.newer.stime_ns - self.older.stime_ns) / 1e9 / self.seconds

    @property
    def spins(self) -> float:
        """Share of the window in which the main thread spun in system calls that return at once (sched_yield), as a barrier of MPI does, or
        waited for a CPU in that state: its kernel time beyond that of page faults and bytes. 0 with other threads at work."""
        if self.others_run >= policy.AT_WORK or self.run < policy.TENTH:
            return 0.0
        faults = max(0, (self.newer.minflt or 0) - (self.older.minflt or 0)) / self.seconds
        moved = (counter_per_s(self.older.rchar_bytes, self.newer.rchar_bytes, self.newer.t_ns - self.older.t_ns) or 0.0) + (
            self.write_bytes_per_s or 0.0
        )
        part = (self.system - faults * policy.FAULT_S - moved / policy.COPIED_BYTES_PER_S) / self.run
        return part * (self.run + self.runnable) if policy.TENTH <= part <= 1.0 else 0.0

    @property
    def read_bytes_per_s(self) -> float | None:
        """Bytes per second read from storage; None if not readable."""
        return counter_per_s(self.older.read_bytes, self.newer.read_bytes, self.newer.t_ns - self.older.t_ns)

    @property
    def write_bytes_per_s(self) -> float | None:
        """Bytes per second written to storage; None if not readable."""
        return counter_per_s(self.older.write_bytes, self.newer.write_bytes, self.newer.t_ns - self.older.t_ns)

    @property
    def sleeps_per_s(self) -> float | None:
        """Voluntary switches of the main thread per second; None if not readable."""
        return counter_per_s(self.older.vol, self.newer.vol, self.newer.t_ns - self.older.t_ns)

    @property
    def asleep(self) -> float:
        """Share of the window in which the main thread slept; 0 if it never switched voluntarily, whatever a hypervisor took from it."""
        never = self.unsampled and self.newer.vol is not None and self.newer.vol == self.older.vol
        return 0.0 if never else max(0.0, 1.0 - self.run - self.runnable)

    @cached_property
    def others(self) -> tuple[float, float]:
        """(on-CPU share, run-queue share) of the other threads, each summed; zero if these were not read, or hardly ran."""
        run, runnable = (0.0, 0.0) if self.cores - self.run < policy.HARDLY else self._sum_threads()
        if self.threaded is not None and self.cores - self.run - run > policy.FIFTH:
            run = self.cores - self.run
        return run, runnable

    @property
    def waits_its_turn(self) -> bool | None:
        """True if most waits for locks in the samples had a time limit; None without such a sample."""
        limits = [sample.syscall_arg for sample in self.samples if sample.syscall in self.futex and sample.syscall_arg in (FOR_EVER, SOME)]
        return None if not limits else 2 * limits.count(FOR_EVER) < len(limits)

    @property
    def awaits_memory(self) -> float:
        """Share of the window that the main thread slept at futexes between processes: a semaphore or a lock in memory that they share."""
        return self.kinds.get(LOCK, 0.0) * min(1.0, self.shared_futexes.total() / max(1, self.met_at_locks))

    @property
    def locked_out(self) -> tuple[int, float]:
        """(pid of the process that most often held a lock it waited for, share of the samples); (0, 0.0) if there was none."""
        holders = [sample.locked_by for sample in self.samples if sample.locked_by is not None]
        if not holders:
            return 0, 0.0
        pid, count = Counter(holders).most_common(1)[0]
        return pid, count / len(self.samples)

    @cached_property
    def lock_thread(self) -> tuple[int, float]:
        """(the other thread of this process that most often held the mutex at which its main thread slept, share of its samples at locks);
        (0, 0.0) if there was none."""
        asleep = [one for one in self.samples if self.kind_of(one.state, one.syscall, one.syscall_arg, one.wchan) == LOCK]
        holders = Counter(one.lock_tid for one in asleep if one.lock_tid is not None and one.locked_by is None)
        [(tid, times)] = holders.most_common(1) or [(0, 0)]
        return tid, times / max(1, len(asleep))

    @property
    def at_mutex(self) -> bool:
        """True if most locks that other processes held and the main thread waited for were mutexes in shared memory, not files."""
        held = [one.lock_tid is not None for one in self.samples if one.locked_by is not None]
        return 2 * sum(held) > len(held)

    def activity_of(self, tid: int) -> dict[str, float]:
        """Activity of one other thread -> share of the window, summing to 1: on a CPU, ready for one (``TURN``), and kinds of its sleep by
        samples."""
        run, ready = (min(1.0, part) for part in self._sum_threads({tid}))
        ready = min(ready, 1.0 - run)
        met = Counter(self._met(one) for sample in self.samples for one in sample.threads if one.tid == tid)
        asleep = {kind: times for kind, times in met.items() if kind not in (ONCPU, UNKNOWN)} or {UNKNOWN: 1}
        scale = (1.0 - run - ready) / sum(asleep.values())
        return {kind: times * scale for kind, times in asleep.items()} | {ONCPU: run, TURN: ready}

    def kept_out(self, kind: str) -> float:
        """Share of the samples asleep in ``kind`` (a word of `waits`) in which another process held a lock that the main thread waited
        for."""
        asleep = [one for one in self.samples if self.kind_of(one.state, one.syscall, one.syscall_arg, one.wchan) == kind]
        return sum(sample.locked_by is not None for sample in asleep) / len(asleep) if asleep else 0.0

    @property
    def lock_holder(self) -> int:
        """Pid of the other process for which most sleeps of the main thread at locks are: it lets go of a lock, and feeds nobody; 0 without
        one."""
        return self.locked_out[0] if self.kept_out(LOCK) >= policy.HALF else 0

    @property
    def held_up(self) -> float:
        """Share of the window that the main thread slept until another process read what it writes: a log, a progress bar, a socket."""
        met = [one for one in self.samples if self.kind_of(one.state, one.syscall, one.syscall_arg, one.wchan) == PIPE]
        return self.kinds.get(PIPE, 0.0) * sum(is_unread(one.wchan) for one in met) / len(met) if met else 0.0

    @property
    def threads_held_up(self) -> float:
        """Part of the waits at pipes and sockets in which looks met its other threads that were for another process to read what they
        write."""
        met = [
            thread for sample in self.samples for thread in sample.threads
            if thread.tid != self.pid and self.kind_of("S", thread.syscall, thread.syscall_arg, thread.wchan) == PIPE
        ]  # fmt: skip
        return sum(is_unread(thread.wchan) for thread in met) / len(met) if met else 0.0

    @property
    def reads_remotely(self) -> bool:
        """True if most sleeps at files in the samples are on a network file system (NFS, FUSE, Lustre …)."""
        asleep = [one for one in self.samples if one.state == "D" or is_remote_file(one.wchan)]
        remote = sum(self.kind_of("D", one.syscall, one.syscall_arg, one.wchan) == NETWORK for one in asleep)
        return 2 * remote > len(asleep)

    @property
    def at_fuse(self) -> bool:
        """True if most sleeps at the network in the samples, of its main thread or else of the others, are at files that a process of this
        host serves."""
        main = [one.wchan for one in self.samples if self.kind_of(one.state, one.syscall, one.syscall_arg, one.wchan) == NETWORK]
        others = (one for sample in self.samples for one in sample.threads if one.tid != self.pid)
        met = main or [one.wchan for one in others if self.kind_of("S", one.syscall, one.syscall_arg, one.wchan) == NETWORK]
        return 2 * sum(map(is_fuse, met)) > len(met)

    @property
    def sleeps_long(self) -> bool:
        """True if the main thread sleeps at locks longer at a time than Python's GIL takes: it waits for another thread's work."""
        locked = self.kinds.get(LOCK, 0.0)
        if self.own_wakes is not None:
            share, times_per_s = self.own_wakes
            return share > max(policy.MOST * locked, policy.GIL_HELD_S * times_per_s)
        return self.sleeps_per_s is not None and locked > policy.GIL_S * self.sleeps_per_s

    @property
    def takes_turns(self) -> bool:
        """True if the other threads wait for one GIL: together they can use no more than one CPU."""
        met = self.threads_met
        return met[TURN] >= max(policy.OFTEN, policy.HALF * met[ONCPU])

    @property
    def clients(self) -> tuple[float, float]:
        """(mean number of clients, mean number of clients waiting for a lock) of a server with one thread per client
        (multiprocessing.Manager); (0, 0) for other processes."""
        told = [[one for one in sample.threads if one.tid != self.pid] for sample in self.samples if len(sample.threads) > 1]
        if not told or not all(any(is_accepting(one.wchan) for one in threads) for threads in told):
            return 0.0, 0.0
        met = Counter(self._met(one) for threads in told for one in threads if not is_accepting(one.wchan))
        return sum(met.values()) / len(told), met[LOCK] / len(told)

    @cached_property
    def threads_met(self) -> Counter[str]:
        """Samples of the other threads that ran in the window, by what they were met at: words of `waits`, `TURN` or `ASKING`.

        Threads that merely wait for requests are left out.
        """
        told = [thread for sample in self.samples for thread in sample.threads if thread.syscall is not None or thread.wchan is not None]
        if not told:
            return _NOBODY
        moved = {thread.tid: thread for thread in self._thread_deltas if thread.oncpu_ns > 0 and thread.tid != self.pid}
        by_thread: dict[int, Counter[str]] = {}
        drivers = {thread.tid for thread in self.info.threads if thread.comm.startswith(DRIVER)}
        for thread in told:
            if thread.tid in moved and thread.tid not in drivers and not is_accepting(thread.wchan):
                by_thread.setdefault(thread.tid, Counter())[self._met(thread)] += 1
        idle = {tid for tid, met in by_thread.items() if met[POLL] >= policy.NEARLY_ALL * met.total()}
        if self._asks(sum(moved[tid].vol or 0 for tid, met in by_thread.items() if met[POLL]), len(idle) == len(by_thread)):
            return _renamed(sum(by_thread.values(), Counter()), POLL, ASKING)
        return sum((met for tid, met in by_thread.items() if tid not in idle), Counter())

    def _asks(self, woken: int, alone: bool) -> bool:
        """True if polling threads, ``woken`` so often, fetch what the main thread waits for. The main thread wakes for its GPU, too; but
        while it sleeps at a lock and the threads are ``alone`` in this process, only they can open that lock."""
        before = self.threaded or self.older
        if self.newer.vol is None or before.vol is None:
            return False
        often = woken >= policy.ASKS_PER_S * (self.newer.t_ns - before.t_ns) / 1e9
        return woken >= self.newer.vol - before.vol or (alone and often and self.kinds.get(LOCK, 0.0) >= policy.SOME)

    def _met(self, thread: ThreadSample) -> str:
        if thread.syscall in self.futex and thread.syscall_arg == SOME:
            return TURN
        return self.kind_of("D" if thread.state == "D" else "S", thread.syscall, thread.syscall_arg, thread.wchan)

    @cached_property
    def _thread_deltas(self) -> list[ThreadSample]:
        return thread_deltas(self.threaded or self.newer, self.newer)

    @property
    def has_finished(self) -> bool:
        """True if the process ended by itself with exit code 0, as torch's workers do at the end of their part of a stream while others go
        on."""
        return self.newer.state == "Z" and self.newer.exit_code == 0

    def _sum_threads(self, only: Collection[int] = ()) -> tuple[float, float]:
        others = [one for one in self._thread_deltas if one.tid != self.pid and (not only or one.tid in only)]
        ns = max(1, self.newer.t_ns - (self.threaded or self.newer).t_ns)
        return sum(one.oncpu_ns for one in others) / ns, sum(one.run_delay_ns for one in others) / ns

    @property
    def autograd_run(self) -> float:
        """Share of the window that the threads of PyTorch's backward pass, which launch its kernels, ran on a CPU
        (torch/csrc/autograd/engine.cpp names them)."""
        named = backward_threads(self.info)
        return self._sum_threads(named)[0] if named and self.others_run else 0.0

    @property
    def threads_at_work(self) -> int:
        """Number of other threads that ran or were runnable for `policy.AT_WORK` of the time, without the driver's."""
        drivers = {thread.tid for thread in self.info.threads if thread.comm.startswith(DRIVER)}
        others = (one for one in self._thread_deltas if one.tid != self.pid and one.tid not in drivers)
        ns = max(1, self.newer.t_ns - (self.threaded or self.newer).t_ns)
        return sum(one.oncpu_ns + one.run_delay_ns >= policy.AT_WORK * ns for one in others)

    @cached_property
    def fullest_thread(self) -> float:
        """Share of the window that the busiest other thread ran or was runnable, without `WATCHERS`."""
        drivers = {thread.tid for thread in self.info.threads if thread.comm.startswith(WATCHERS)}
        ns = max(1, self.newer.t_ns - (self.threaded or self.newer).t_ns)
        others = (one for one in self._thread_deltas if one.tid != self.pid and one.tid not in drivers)
        return max(((one.oncpu_ns + one.run_delay_ns) / ns for one in others), default=0.0)

    @property
    def busiest_thread(self) -> str:
        """Name of the other thread that ran most; empty without one or without a name."""
        others = [one for one in self._thread_deltas if one.tid != self.pid]
        tid = max(others, key=lambda one: one.oncpu_ns).tid if others else 0
        return next((thread.comm for thread in self.info.threads if thread.tid == tid), "")

    @property
    def ahead(self) -> float:
        """Share of the window in which the worker had nothing to do because its trainer has its results."""
        return self.state.fractions.get("ahead", 0.0)

    @property
    def others_run(self) -> float:
        return self.others[0]

    @property
    def others_runnable(self) -> float:
        return self.others[1]


def knowing(proc: ProcFacts, **more: Any) -> ProcFacts:
    """The process's facts with ``more`` fields set; values that were computed from its threads are kept."""
    found = replace(proc, **more)
    vars(found).update(vars(proc))
    return found


def backward_threads(info: ProcInfo) -> set[int]:
    """Tids of the threads that run PyTorch's backward pass while the main thread waits for them."""
    return {thread.tid for thread in info.threads if thread.comm.startswith(AUTOGRAD)}


def _renamed(met: Counter[str], word: str, other: str) -> Counter[str]:
    met[other] += met.pop(word, 0)
    return met


def blocked_on(proc: ProcFacts) -> dict[str, float]:
    """Kind of wait -> share of the window in which the process was blocked in it."""
    share, total = proc.state.fractions.get("blocked", 0.0), sum(proc.state.waits.values())
    return {kind: share * part / total for kind, part in proc.state.waits.items()} if total > 0.0 else {"unknown": share}
