"""Counters of the window that belong to no single process: CUDA calls, control groups."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gputop.diagnosis.facts.bursts import Bursts
from gputop.diagnosis.facts.facts import CallFacts, GpuFacts, JobFacts, LimitFacts, SampledFacts
from gputop.diagnosis.facts.pauses import Quiet
from gputop.findings import policy
from gputop.findings.policy import TICK_SLACK_NS, WINDOW_NS
from gputop.model.board import Board
from gputop.model.frame import CgroupSample, CudaCall, MainSamples, Probes
from gputop.model.rates import counter_per_s, throttled_periods_pct
from gputop.model.roles import Role

MIN_FEEDS, MIN_LOOKED = 6, 3
"""Least number of feeds in the window: a recording fed once a second keeps more time instead of fewer samples. The second value holds if
frames between feeds are looked at."""

PERIOD_NS = 100_000_000  # ns, period of cpu.max by default
_SYNC = ("Synchronize", "EventQuery", "StreamQuery")

Calls = Mapping[str, CudaCall]  # of one process, by name


class Counted(NamedTuple):
    """Counters of a trainer's CUDA calls, cumulative: the rarer of the first two counts its steps (`gputop.diagnosis.facts.stepclock`)."""

    t_ns: int
    copies: int  # to the GPU
    syncs: int  # of the most frequent synchronize
    copied_bytes: int
    estimated: bool = False  # whether some of these calls are counted in a part of the time


class _FeedPoint(Struct):
    """The part of the board that one feed keeps, besides the tracks."""

    t_ns: int
    probed_ns: int  # when calls and wakes were read
    calls: dict[int, dict[str, CudaCall]]  # by pid
    cgroups: dict[str, CgroupSample]
    sampled: dict[int, MainSamples]


class _CallWaits:
    """Effective number of calls that share the total time: calls that find the GPU done at once hardly count.

    It is the perplexity of the time over the calls: N for N equally long calls, one if a single call takes all the time. A few
    long calls among thousands, as on a busy host, weigh less in it than in a ratio of squares.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.buckets: list[tuple[int, int]] = []  # (ns, calls) of each bucket of each call's histogram

    def add(self, old: CudaCall, new: CudaCall) -> None:
        """Add the calls between two readings of one call's counters."""
        self.calls += max(0, new.count - old.count)
        for bucket, total_ns in new.sums.items():
            ns, count = total_ns - old.sums.get(bucket, 0), new.hist.get(bucket, 0) - old.hist.get(bucket, 0)
            if ns > 0 and count > 0:
                self.buckets.append((ns, count))

    def count(self) -> float:
        """The effective number; the plain number of calls if there is no histogram."""
        total = sum(ns for ns, _ in self.buckets)
        return exp(sum(ns / total * log(count * total / ns) for ns, count in self.buckets)) if total else float(self.calls)


def facts_of(before: Calls, now: Calls, ns: int, slowest: float = policy.SLOWEST_NS_PER_BYTE, idle: float = 1.0) -> CallFacts | None:
    """Facts of the calls between two readings, ``ns`` apart; None without any.

    ``slowest``: upper bound of nanoseconds per copied byte. ``idle``: share of the time without kernels; copies back first wait for
    kernels.
    """
    if ns <= 0 or not now:
        return None
    total, waits, moved, long_ns = defaultdict[str, float](float), _CallWaits(), 0, 0
    rates, shares, most_syncs_per_s = list[float](), [1.0], 0.0
    ends = _end_of_copies(before, now, ns)
    for name, call in now.items():
        old = before.get(name) or CudaCall(call.pid, name, 0, 0, 0)
        calls = max(0, call.count - old.count)
        is_copy = "emcpy" in call.call  # one may last longer than the window
        spent_ns = call.total_ns - old.total_ns + (call.inflight_ns - old.inflight_ns if is_copy else 0)
        share, per_s = max(0, spent_ns) / ns, calls * 1e9 / ns
        if calls:
            shares.append(call.share)
        count = max(0, (call.bytes or 0) - (old.bytes or 0))
        if name == ends:
            total["copy"] += share
            continue
        if "DtoD" in call.call:  # work for the GPU, as a kernel is: no thread waits for it, and it does not use the link
            continue
        if "HtoD" not in call.call:
            waits.add(old, call)
            rates += [per_s] if per_s else []
        total["from_gpu_bytes_per_s"] += count * 1e9 / ns if "DtoH" in call.call else 0.0
        takes = (count * slowest + calls * policy.SLOWEST_NS) / ns if call.bytes is not None else share
        if any(word in call.call for word in _SYNC) or ("DtoH" in call.call and count * slowest < share * ns / 2):
            total["sync"] += share
            total["sync_per_s"] += per_s
            most_syncs_per_s = max(most_syncs_per_s, per_s)
            if is_copy:
                total["slow"] += max(0.0, share - calls * policy.SLOWEST_NS / ns)
                total["slow_bytes_per_s"] += count * 1e9 / ns
        elif is_copy:
            copied = min(share, takes, idle) if "DtoH" in call.call else min(share, takes)
            total["copy"] += copied
            total["copy_per_s"] += per_s
            total["sync"] += share - copied
            total["slow"] += share - copied
            total["to_gpu_per_s"] += per_s if "HtoD" in call.call else 0.0
            total["to_gpu_bytes_per_s"] += count * 1e9 / ns if "HtoD" in call.call else 0.0
            moved, long_ns = moved + count, max(long_ns, call.inflight_ns, old.inflight_ns)
    return CallFacts(
        ns / 1e9, waits_per_s=waits.count() * 1e9 / ns, most_syncs_per_s=most_syncs_per_s, rates=tuple(rates), counted_share=min(shares),
        copy_bytes_per_s=moved * 1e9 / ns if moved and long_ns < ns / 4 else None,  # bytes are counted when a copy returns
        **total,
    )


def copied_beside(calls: CallFacts, idle: float) -> CallFacts:
    """The calls, corrected for GPUs that ran no kernel for the share ``idle`` of the window.

    Calls cannot have waited for kernels longer than kernels ran. Time of slow copies beyond that was copying, however fast the link is:
    pageable memory, page faults in it, a throttled or shared link. Several threads may wait for the same kernels.
    """
    threads = max(1.0, calls.sync + calls.copy)
    waited = max(0.0, (1.0 - idle) * threads - (calls.sync - calls.slow))
    copied = max(0.0, calls.slow - waited)
    moved = calls.copy_bytes_per_s
    if 2 * copied > calls.slow and calls.slow_bytes_per_s:
        moved = (moved or 0.0) + calls.slow_bytes_per_s
    return replace(calls, copy=calls.copy + copied, sync=calls.sync - copied, slow=calls.slow - copied, copy_bytes_per_s=moved)


def _met(older: MainSamples, newer: MainSamples) -> SampledFacts | None:
    """Facts from the samples between two readings; None if there are too few or too many are unknown.

    Samples miss short waits. If waiting and other time alternate at random, a sample predicts its neighbour with exp(-rate x period). So
    the rate of waits follows from how often neighbours differ, relative to how often they would by chance.
    """
    if newer.watched_ns - older.watched_ns < policy.LEAST_SAMPLED_NS:
        older = MainSamples(newer.pid)
    ns, unknown_ns = newer.watched_ns - older.watched_ns, newer.unknown_ns - older.unknown_ns
    if ns <= 0 or (unknown_ns > policy.TENTH * ns and unknown_ns > newer.sync_ns - older.sync_ns):
        return None
    waits, met, waiting = newer.waits - older.waits, newer.met - older.met, newer.met_waiting - older.met_waiting
    unlike = min(policy.NEARLY_ALL, waits / by_chance) if (by_chance := waiting * (1.0 - waiting / max(1, met))) > 0.0 else 0.0
    missed = -log(1.0 - unlike) / unlike if unlike > 0.0 else 1.0
    spent = ((newer.sync_ns - older.sync_ns), (newer.copy_ns - older.copy_ns), (newer.launch_ns - older.launch_ns))
    sync, copy, launch = (min(1.0, part / ns) for part in spent)
    return SampledFacts(sync, copy, launch, missed * waits * 1e9 / ns, waits * 1e9 / ns)


def _end_of_copies(before: Calls, now: Calls, ns: int) -> str:
    """Name of the call that only waits for each copy to the GPU, else empty."""
    none = CudaCall(0, "", 0, 0, 0)
    made = {name: call.count - before.get(name, none).count for name, call in now.items()}
    to_gpu = [name for name in made if "HtoD" in name]
    copies = sum(made[name] for name in to_gpu)
    moved = sum((now[name].bytes or 0) - (before.get(name, none).bytes or 0) for name in to_gpu)
    longest_ns = copies * policy.SLOWEST_NS + moved * policy.SLOWEST_NS_PER_BYTE
    if copies * 1e9 < policy.SYNCS_PER_S * ns:
        return ""
    for name, call in now.items():
        waited_ns = call.total_ns - before.get(name, none).total_ns
        if "Synchronize" in name and abs(made[name] - copies) <= policy.TENTH * copies and waited_ns <= longest_ns:
            return name
    return ""


class Points:
    """One point per feed, over the window."""

    def __init__(self) -> None:
        self._points: deque[_FeedPoint] = deque()
        self._quiet: dict[int, Quiet] = {}
        self._bursts: dict[int, Bursts] = {}
        self._began: dict[int, tuple[int, Calls]] = {}  # trainer -> when its calls were first probed, and their counters then
        self.looked = False  # whether frames between feeds are taken in, too

    def __len__(self) -> int:
        return len(self._points)

    @property
    def oldest_ns(self) -> int:
        """The begin of the window, CLOCK_MONOTONIC."""
        return self._points[0].t_ns

    def push(self, board: Board, roles: Mapping[int, Role]) -> None:
        """Add a point of the board's counters; drop points older than the window."""
        self._quiet = {pid: quiet for pid, quiet in self._quiet.items() if pid in roles}
        self._bursts = {pid: bursts for pid, bursts in self._bursts.items() if pid in roles}
        self._began = {pid: began for pid, began in self._began.items() if pid in roles}
        calls: dict[int, dict[str, CudaCall]] = {}
        for (pid, name), call in board.calls.items():
            calls.setdefault(pid, {})[name] = call
        self._points.append(_FeedPoint(
            t_ns=board.t_ns, probed_ns=board.probed_ns, calls=calls, cgroups=board.cgroups, sampled=dict(board.sampled),
        ))
        least = MIN_LOOKED if self.looked else MIN_FEEDS
        while len(self._points) > least and self._points[1].t_ns <= board.t_ns - WINDOW_NS + TICK_SLACK_NS:
            self._points.popleft()

    def look(self, probes: Probes) -> None:
        """Take in the CUDA calls of a reading between two feeds."""
        self.looked = True
        for call in probes.calls:
            self._quiet.setdefault(call.pid, Quiet()).note(call, probes.t_ns)
            self._bursts.setdefault(call.pid, Bursts()).note(call)
        for quiet in self._quiet.values():
            quiet.end_reading(probes.t_ns)
        for bursts in self._bursts.values():
            bursts.end_reading()

    def _probed(self) -> tuple[_FeedPoint, _FeedPoint]:
        """The first and last point of the window with readings of the probes."""
        return next((point for point in self._points if point.probed_ns), self._points[-1]), self._points[-1]

    def quiet(self, pid: int) -> list[tuple[int, int]]:
        """Spans in which a trainer made no CUDA calls between steps; empty if its calls were not looked at between feeds."""
        quiet, last = self._quiet.get(pid), self._points[-1]
        return quiet.spans(self.oldest_ns, last.probed_ns) if quiet is not None else []

    def copies_at_once(self, pid: int) -> int | None:
        """Copies to the GPU that a trainer makes at once; None if that varies, or its calls were not looked at between feeds."""
        bursts = self._bursts.get(pid)
        return None if bursts is None else bursts.copies

    def calls(self, pid: int, gpus: Sequence[GpuFacts]) -> CallFacts | None:
        """Facts of the CUDA calls in the window of a trainer on ``gpus``; None if they are not probed."""
        first, last = self._probed()
        links = [link for gpu in gpus if (link := gpu.link_bytes_per_s)]
        slowest = min(policy.SLOWEST_NS_PER_BYTE, 1e9 / (policy.TENTH * min(links))) if links else policy.SLOWEST_NS_PER_BYTE
        without_kernels = [gpu.lost for gpu in gpus if gpu.sm_active is not None and gpu.lost is not None]
        idle = max(without_kernels) if without_kernels else 1.0
        return facts_of(first.calls.get(pid, {}), last.calls.get(pid, {}), last.probed_ns - first.probed_ns, slowest, idle)

    def calls_made(self, pid: int) -> int | None:
        """Number of CUDA calls of a trainer since probing began; None if they are not probed."""
        calls = self._points[-1].calls.get(pid)
        return sum(call.count for call in calls.values()) if calls else None

    def counted(self, pid: int) -> Counted | None:
        """Counters of a trainer's calls that count its steps; None if they are not probed."""
        last = self._points[-1]
        if not (calls := [*last.calls.get(pid, {}).values()]):
            return None
        to_gpu = [call for call in calls if "HtoD" in call.call]
        to_gpu = to_gpu or [call for call in calls if "emcpy" in call.call and "DtoH" not in call.call and "DtoD" not in call.call]
        waits = [call for call in calls if any(word in call.call for word in _SYNC)]
        return Counted(
            last.probed_ns, sum(call.count for call in to_gpu), max((call.count for call in waits), default=0),
            sum(call.bytes or 0 for call in to_gpu), any(call.share < 1.0 for call in (*to_gpu, *waits)),
        )  # fmt: skip

    def sampled(self, pid: int) -> SampledFacts | None:
        """Facts of the main thread's samples in the window; None if it was not sampled."""
        told = [point.sampled[pid] for point in self._points if pid in point.sampled]
        return _met(told[0], told[-1]) if told else None

    def restart(self, *pids: int) -> None:
        """Let the trainers' `all_calls` count from now on."""
        for pid in pids:
            self._began.pop(pid, None)

    def all_calls(self, pid: int) -> CallFacts | None:
        """Facts of a trainer's CUDA calls since it began to train, or since they were first probed; None if they are not probed."""
        last = self._points[-1]
        own = last.calls.get(pid)
        if own is None:
            return None
        began_ns, before = self._began.setdefault(pid, (last.probed_ns, own))
        return facts_of(before, own, last.probed_ns - began_ns)

    def limits(self, job: JobFacts, board: Board, psi_memory: float, members: Iterable[int] = ()) -> LimitFacts:
        """The tightest quota over the cgroups of the job's processes, else over its feeders'; those of ``members`` of its family; the
        cgroup that is at its memory limit. ``psi_memory``: share of the window in which a process of the host stalled on memory."""
        last, found = self._points[-1], dict[str, Any]()
        own = {proc.info.cgroup for proc in (job.trainer, *job.workers)}
        others = {board.infos[pid].cgroup for pid in job.feeders.pids} - own
        tightest = 0.0
        for path in (*own, *others):
            newer, word = last.cgroups.get(path), "throttled_periods" if path in own else "fed_throttled_periods"
            if newer is None:
                continue
            ns, older = self._earlier(newer)
            share = (throttled_periods_pct(older, newer) or 0.0) / 100
            if (share >= tightest if path in own else share > tightest) and newer.quota_cpus is not None:
                tightest = found[word] = share
                found |= {"quota_cpus": newer.quota_cpus, "quota_path": newer.quota_path or newer.path}
            if path in own:
                found["cgroup_version"] = newer.version
                found["read_limit"] = newer.read_limit or found.get("read_limit")
            if path == job.trainer.info.cgroup:
                found["cpuset"] = newer.cpuset or ""
            if _is_full(newer) and (counter_per_s(older.refaults, newer.refaults, ns) or 0.0) >= policy.REFAULTS_PER_S:
                limit, pages = newer.mem_limit_bytes, newer.mem_file_bytes
                found |= {"memory_path": newer.mem_limit_path or newer.path, "memory_limit_bytes": limit, "memory_file_bytes": pages}
        for pid in members:
            newer = last.cgroups.get(board.infos[pid].cgroup) if pid in board.infos else None
            if newer is not None and newer.quota_cpus is not None and newer.path not in own | others:
                share, quota_path = (throttled_periods_pct(self._earlier(newer)[1], newer) or 0.0) / 100, newer.quota_path or newer.path
                if quota_path != found.get("quota_path"):
                    found.setdefault("of_members", {})[pid] = share, newer.quota_cpus, quota_path
        return LimitFacts(**found, pressed=psi_memory >= policy.LITTLE or "memory_path" in found)

    def _earlier(self, newer: CgroupSample) -> tuple[int, CgroupSample]:
        """(ns ago, the cgroup's oldest different reading in the window). For a young cgroup that was read only once: its birth, with all
        counters 0."""
        for point in self._points:
            older = point.cgroups.get(newer.path)
            if older is not None and older is not newer and older != newer:
                return self._points[-1].t_ns - point.t_ns, older
        if (newer.nr_periods or 0) * PERIOD_NS <= policy.SHORT_LIVED_NS:
            return policy.SHORT_LIVED_NS, _newborn(newer)
        return 0, newer


def _newborn(cgroup: CgroupSample) -> CgroupSample:
    """The cgroup at its beginning: all counters zero."""
    return CgroupSample(cgroup.path, cgroup.version, nr_periods=0, nr_throttled=0, throttled_ns=0, refaults=0)


def _is_full(cgroup: CgroupSample) -> bool:
    """True if the cgroup is at its memory limit, but for what one reclaim frees."""
    used, limit = cgroup.mem_bytes, cgroup.mem_limit_bytes
    return used is not None and bool(limit) and used >= policy.NEARLY_ALL * (limit or 0)
