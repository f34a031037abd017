"""Who outside the jobs takes the CPUs: by their own CPU time, and by the probe's count of whom they kept waiting."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from gputop.diagnosis import waits
from gputop.diagnosis.facts import Grower, Mover, Taker
from gputop.diagnosis.model import Culprit
from gputop.diagnosis.spawners import gather
from gputop.diagnosis.strangers import Stranger, recorders, shares
from gputop.diagnosis.waits import KindOf
from gputop.model.board import Board
from gputop.model.frame import Preempt, ProcSample
from gputop.model.rates import pair_growth
from gputop.model.roles import Role, hot

LEAST_CORES = 0.02
MOST = 12  # takers kept per window
NAMES, PIDS = 5, 5  # told in a sentence; the latter of one name
GROWN_BYTES, MOVED_BYTES_PER_S = 64 << 20, 2e6  # of memory, and of storage, to be worth naming
LEVELS = 3  # a shell may stand between a program and who wanted it
GONE_NS = 2_000_000_000  # so long after the window has left its last sample a process is remembered: it ended up to a second later
MUTE_NS = 2_000_000_000  # so long a program must have stood at its errors: who reads them now and then does so more often


class TakerTrack:
    """CPU time of every process that is no trainer or worker; those that did not run cost one comparison."""

    __slots__ = ("_gains", "_pairs", "_recorders", "_strangers", "fed")

    def __init__(self) -> None:
        self.fed: dict[int, int] = {}
        """Pid of who feeds a trainer that did not start it -> that trainer: it counts as a program of the trainer's."""
        self._strangers: dict[int, Stranger] = {}
        self._recorders: frozenset[int] = frozenset()
        self._pairs: dict[tuple[int, int], Preempt] | None = None
        self._gains: deque[tuple[int, dict[tuple[int, int], int]]] = deque()
        """Per push what it added to `behind`: the pairs of a process that ends are pruned, what it did in the window is not."""

    def push(self, board: Board, roles: Mapping[int, Role], oldest_ns: int) -> None:
        """Add the samples that are new, forget who has been gone for a window."""
        strangers, family = self._strangers, hot(roles)
        for pid, sample in board.procs.items():
            known = strangers.get(pid)
            if (known is not None and known.latest is sample) or pid in family:
                continue
            if known is None or known.latest.start_ticks != sample.start_ticks:
                strangers[pid] = Stranger.met(sample, board)
            else:
                known.push(sample, board, oldest_ns)
        if len(strangers) > len(board.procs) - len(family):
            for pid in [pid for pid in strangers if pid not in board.procs and strangers[pid].latest.t_ns <= oldest_ns - GONE_NS]:
                del strangers[pid]
        self._recorders = recorders(strangers, board.header.collector_pid)
        self._gains.append((board.t_ns, self._gained(board, roles)))
        while self._gains and self._gains[0][0] <= oldest_ns:
            self._gains.popleft()

    def _gained(self, board: Board, roles: Mapping[int, Role]) -> dict[tuple[int, int], int]:
        """(trainer, culprit pid) -> ns since the last push that it ran while a thread of the trainer's job was runnable there."""
        before, self._pairs = self._pairs, dict(board.preempts)
        found: dict[tuple[int, int], int] = {}
        if before is None:
            return found
        for pair, preempt in [(pair, preempt) for pair, preempt in self._pairs.items() if before.get(pair) is not preempt]:
            old, owner = before.get(pair), board.threads.get(pair[0])
            role = roles.get(owner.pid if owner is not None else pair[0])
            if role is not None and role.kind != "helper" and role.trainer_pid is not None and preempt.culprit_pid:
                key = role.trainer_pid, preempt.culprit_pid
                found[key] = found.get(key, 0) + pair_growth(old.ns if old is not None else 0, preempt.ns)
        return found

    def behind(self) -> dict[int, dict[int, float]]:
        """Trainer -> pid -> seconds in the window that threads of that job waited while that process ran on their CPU."""
        found: dict[int, dict[int, float]] = {}
        for _t_ns, gained in self._gains:
            for (trainer, pid), ns in gained.items():
                waits = found.setdefault(trainer, {})
                waits[pid] = waits.get(pid, 0.0) + ns / 1e9
        return found

    def facts(
        self, board: Board, roles: Mapping[int, Role], behind: Mapping[int, Mapping[int, float]], oldest_ns: int
    ) -> tuple[list[Taker], dict[int, dict[str, float]], float]:
        """Strangers that took a noticeable part of a CPU, most first; the CPUs of each trainer's helpers by their labels, and of who
        records."""
        found, helpers, watching = [], dict[int, dict[str, float]](), 0.0
        for pid, stranger in self._strangers.items():
            old, new = stranger.used[0], stranger.used[-1]
            if len(stranger.used) < 2 or new.t_ns <= oldest_ns:
                continue
            # Over the time between its samples, for it is read seldom; over the time to now once it is gone.
            ns = (new.t_ns if pid in board.procs else board.t_ns) - old.t_ns
            cores = (new.own_ns - old.own_ns) / (ns or 1)
            if cores < LEAST_CORES:
                continue
            role = roles.get(pid)
            if role is not None and role.trainer_pid is not None:
                if role.kind == "helper":
                    by_label = helpers.setdefault(role.trainer_pid, {})
                    by_label[role.label] = by_label.get(role.label, 0.0) + cores
            elif pid in self._recorders:
                watching += cores
            else:
                kept_s = sum(waits.get(pid, 0.0) for waits in behind.values())
                found.append(Taker(
                    pid=pid, name=stranger.name, cores=cores, preempted_s=kept_s, where=shares(stranger.ns_on),
                    before_ns=stranger.before_ns(oldest_ns), info=stranger.info,
                ))
        others = {pid: one for pid, one in self._strangers.items() if pid not in roles and pid not in self._recorders}
        found = gather(found, others, board, oldest_ns)
        found.sort(key=lambda taker: -taker.cores)
        return found[:MOST], helpers, watching

    def growers(self, board: Board, roles: Mapping[int, Role]) -> list[Grower]:
        """Strangers that nobody of a job started and that hold `GROWN_BYTES` more memory than when they were first seen."""
        grown = [(one.latest.rss_bytes - one.first_rss_bytes, pid) for pid, one in self._strangers.items() if pid in board.procs]
        found = [(grown_bytes, pid) for grown_bytes, pid in grown if grown_bytes >= GROWN_BYTES and self._starter(pid, roles) is None]
        named = [(grown_bytes, pid, self._strangers[pid]) for grown_bytes, pid in sorted(found, reverse=True)[:MOST]]
        return [Grower(pid, one.name, grown_bytes, one.info.cgroup if one.info else "") for grown_bytes, pid, one in named]

    def movers(self, roles: Mapping[int, Role], oldest_ns: int) -> list[Mover]:
        """Strangers that nobody of a job started and that move `MOVED_BYTES_PER_S` to or from storage, most first."""
        read = {pid: one for pid, one in self._strangers.items() if one.used[-1].t_ns > oldest_ns and pid not in self._recorders}
        moved = [(one.moved_bytes_per_s, pid) for pid, one in read.items()]
        found = [(rate, pid) for rate, pid in moved if rate >= MOVED_BYTES_PER_S and self._starter(pid, roles) is None]
        return [Mover(pid, self._strangers[pid].name, rate) for rate, pid in sorted(found, reverse=True)[:MOST]]

    def ended_ns(self, board: Board, roles: Mapping[int, Role]) -> dict[int, int]:
        """CPU time in all of programs that have ended, as far as it was seen while they ran, by the pid of who started them."""
        found: dict[int, int] = {}
        for pid, stranger in self._strangers.items():
            starter = self._starter(pid, roles) if pid not in board.procs else None
            if starter is not None:
                found[starter] = found.get(starter, 0) + stranger.used[-1].own_ns
        return found

    def cores(self, pid: int) -> float | None:
        """CPUs that a process outside the jobs ran on; None where it was read but once."""
        used = self._strangers[pid].used if pid in self._strangers else []
        ns = used[-1].t_ns - used[0].t_ns if used else 0
        return (used[-1].own_ns - used[0].own_ns) / ns if ns > 0 else None

    def starters(self, roles: Mapping[int, Role]) -> dict[int, int]:
        """Pid of a program that a trainer or worker started, or that feeds it -> the pid of that one; of those that were asked what they
        wait for."""
        found = {pid: self._starter(pid, roles) for pid, stranger in self._strangers.items() if stranger.asked}
        return {pid: starter for pid, starter in found.items() if starter is not None}

    def stopped(self, board: Board, starters: Mapping[int, int]) -> dict[int, dict[int, str]]:
        """Stopped programs that trainers and workers started, with their names, by the pid of who started them."""
        return self._names(starters, lambda pid, stranger: pid in board.procs and stranger.latest.state in waits.STOPPED_STATES)

    def mute(self, board: Board, starters: Mapping[int, int]) -> dict[int, dict[int, str]]:
        """The same of those that have not run for the window's length, for nobody reads their errors."""
        return self._names(starters, lambda _pid, stranger: _is_mute(stranger, board))

    def _names(self, starters: Mapping[int, int], has: Callable[[int, Stranger], bool]) -> dict[int, dict[int, str]]:
        found: dict[int, dict[int, str]] = {}
        for pid, starter in starters.items():
            stranger = self._strangers[pid]
            if has(pid, stranger):
                found.setdefault(starter, {})[pid] = stranger.name
        return found

    def met(self, starters: Mapping[int, int], kind_of: KindOf, oldest_ns: int) -> dict[int, Counter[str]]:
        """How often in the window programs that trainers and workers started were met at what, by the pid of who started them.

        Not those that are ahead of their reader: nobody waits for them. Who feeds a trainer polls for what that one asks.
        """
        found: dict[int, Counter[str]] = {}
        for pid, starter in starters.items():
            stranger = self._strangers[pid]
            recent = stranger.asked_since(oldest_ns)
            late = [sample for sample in recent if not waits.is_ahead(sample.wchan)]
            kinds = _kinds_of(late, kind_of)
            if len(recent) == len(late) > 1 and kinds[waits.ONCPU]:
                kinds = _by_counters(kinds, _kinds_of(stranger.asked, kind_of), min(1.0, sum(_wanted(recent[0], recent[-1]))))
            if pid in self.fed:
                del kinds[waits.POLL]
            found.setdefault(starter, Counter()).update(kinds)
        return found

    def programs(self, starters: Mapping[int, int], oldest_ns: int) -> dict[int, tuple[float, float]]:
        """Of programs that trainers and workers started: CPUs they ran on and, of their main threads, waited for; by who started them."""
        found: dict[int, tuple[float, float]] = {}
        for pid, starter in starters.items():
            recent = self._strangers[pid].asked_since(oldest_ns)
            if len(recent) > 1:
                run, waited = found.get(starter, (0.0, 0.0))
                more_run, more_waited = _wanted(recent[0], recent[-1])
                found[starter] = run + more_run, waited + more_waited
        return found

    def _starter(self, pid: int, roles: Mapping[int, Role]) -> int | None:
        """The trainer that it feeds, or the nearest trainer or worker above; only the first few levels are looked at."""
        if pid in self.fed:
            return self.fed[pid]
        for _ in range(LEVELS):
            stranger = self._strangers.get(pid)
            if stranger is None or stranger.info is None:
                break
            pid = stranger.info.ppid
            role = roles.get(pid)
            if role is not None and role.kind in ("trainer", "worker"):
                return pid
        return None


def _kinds_of(samples: Sequence[ProcSample], kind_of: KindOf) -> Counter[str]:
    return Counter(kind_of(sample.state, sample.syscall, sample.syscall_arg, sample.wchan) for sample in samples)


def _by_counters(recent: Counter[str], longer: Counter[str], wanted: float) -> Counter[str]:
    """Met running no more often than it ``wanted`` a CPU: whose read ends while we look waits for the CPU that we have. What it sleeps
    in beside is told by the samples of a longer time where the recent ones do not."""
    samples = sum(recent.values())
    running = min(recent[waits.ONCPU], round(samples * wanted))
    asleep = Counter({kind: times for kind, times in recent.items() if kind != waits.ONCPU})
    asleep = asleep or Counter({kind: times for kind, times in longer.items() if kind not in (waits.ONCPU, waits.UNKNOWN)})
    return Counter({kind: round((samples - running) * times / asleep.total()) for kind, times in asleep.items()}) + Counter(
        {waits.ONCPU: running if asleep else recent[waits.ONCPU]}
    )


def _wanted(old: ProcSample, new: ProcSample) -> tuple[float, float]:
    ns = max(1, new.t_ns - old.t_ns)
    return (new.utime_ns + new.stime_ns - old.utime_ns - old.stime_ns) / ns, max(0, (new.run_delay_ns or 0) - (old.run_delay_ns or 0)) / ns


def _is_mute(stranger: Stranger, board: Board) -> bool:
    last, first = stranger.latest, stranger.used[0]
    stands = board.t_ns - first.t_ns >= MUTE_NS and first.own_ns == stranger.used[-1].own_ns
    return stands and waits.is_mute(board.header.machine, last.syscall, last.syscall_arg, last.wchan)


def blame(takers: list[Taker], seconds: float) -> tuple[Culprit, ...]:
    """With the CPU seconds that they took in a window of so many seconds."""
    return tuple(Culprit(taker.pid, taker.name, round(taker.cores * seconds, 3)) for taker in takers)


def names_of(takers: list[Taker]) -> list[str]:
    """The first names, each with its first pids."""
    pids: dict[tuple[str, str], list[str]] = {}
    for taker in takers:
        pids.setdefault((taker.name, _started(taker)), []).append(str(taker.pid))
    told = [
        f"{name} ({', '.join(some[:PIDS])}{_more(len(some) - PIDS)})"
        + (f" and {started} {'it starts' if len(some) == 1 else 'they start'}" if started else "")
        for (name, started), some in pids.items()
    ]
    return told[:NAMES] + ["others"] * (len(told) > NAMES)


def _started(taker: Taker) -> str:
    """What it starts, by the name of those that took most where some were seen."""
    if not taker.spawns:
        return ""
    taken: Counter[str] = Counter()
    for name, ns in taker.started.values():
        taken[name] += ns
    return f"the {taken.most_common(1)[0][0]}" if taken else "what"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
