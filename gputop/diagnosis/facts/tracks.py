"""The last seconds of each process and GPU, from which the window's facts are taken.

Counters need only the window's two ends; the samples between show the kinds of sleep. Samples are shared with the board,
never copied.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.facts import GpuFacts
from gputop.diagnosis.facts.intensity import slowed_by
from gputop.diagnosis.facts.losses import loss_of
from gputop.diagnosis.facts.pauses import Breaks
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.stepclock import Rhythm
from gputop.findings import policy
from gputop.model.board import GpuBoard
from gputop.model.frame import Gpu, GpuReading, Met, ProcInfo, ProcSample, SchedThread
from gputop.model.machine import parse_cpus
from gputop.model.roles import Role
from gputop.model.syscalls import syscall_numbers

LATEST_RATES = 4  # PCIe rates that are kept
SLOWED = {
    "power cap": "slowed_power_ns", "sync boost": "slowed_sync_boost_ns", "heat": "slowed_heat_ns", "heat (HW)": "slowed_hw_heat_ns",
    "power brake": "slowed_brake_ns",
}  # fmt: skip
"""Reason -> field of `Gpu` that counts the time for which it held the clocks down."""


_COUNTERS = (
    "utime_ns", "stime_ns", "oncpu_ns", "run_delay_ns", "timeslices", "vol", "invol", "minflt", "majflt", "read_bytes", "write_bytes",
)  # fmt: skip


_STANDING = (
    "power_limit_w", "power_limit_default_w", "sm_clock_mhz", "sm_clock_max_mhz", "temp_c", "pcie_gen", "pcie_width",
    "pcie_width_max", "pcie_gen_max", "c2c_links", "c2c_link_bytes_per_s", "numa_node", "recovery_action",
)  # fmt: skip


_NONE: Counter[int] = Counter()


class ProcTrack:
    """The samples of one trainer or worker."""

    __slots__ = (
        "began_ns", "between", "counts", "first_rss_bytes", "futex", "kind_of", "kinds", "locks", "moved_ns", "samples", "shared",
        "uninterruptible_ns",
    )  # fmt: skip

    def __init__(self, sample: ProcSample, sched: SchedThread | None, machine: str, born_ns: int = 0) -> None:
        self.kind_of, self.futex = waits.kinds(machine), syscall_numbers("futex", machine=machine)
        self.began_ns = self.moved_ns = sample.t_ns
        self.first_rss_bytes = sample.rss_bytes
        self.samples = [sample]  # few, for which a deque has far too much room
        self.kinds: list[dict[str, int]] = [{self._met(sample): 1}]
        """Kind of wait -> how often a sample, and the looks before it, met it; ``counts`` has the sums"""
        self.counts = self.kinds[0].copy()
        self.uninterruptible_ns = [sched.uninterruptible_ns if sched else None]
        self.between: dict[str, int] = {}  # like ``kinds``, of the looks since the last sample
        self.shared: list[int] = []  # futexes between processes at which looks since the last sample met it
        self.locks = [self._locks_of(sample)]  # of each sample and of the looks before it
        if 0 < sample.t_ns - born_ns < policy.FRESH_NS:  # its counters began at 0 at its birth
            self.samples.insert(0, _at_birth(sample, born_ns))
            self.kinds.insert(0, {})
            self.locks.insert(0, [])
            self.uninterruptible_ns.insert(0, 0 if sched else None)

    def look(self, sample: ProcSample | Met) -> None:
        """Take in a sample between two feeds, or several with the same wait; only the kind of wait is kept."""
        kind = self._met(sample)
        if isinstance(sample, Met):
            self.between[kind] = self.between.get(kind, 0) + sample.times
        else:
            self.between[kind] = self.between.get(kind, 0) + 1
            self.shared += self._locks_of(sample)

    @staticmethod
    def _locks_of(sample: ProcSample) -> list[int]:
        return [] if sample.shared_futex is None else [sample.shared_futex]

    def _met(self, sample: ProcSample | Met) -> str:
        return self.kind_of(sample.state, sample.syscall, sample.syscall_arg, sample.wchan)

    def push(self, sample: ProcSample, sched: SchedThread | None, oldest_ns: int) -> None:
        """Add a newer sample and drop samples from before ``oldest_ns``, except one to subtract from."""
        last = self.samples[-1]
        if sample.t_ns <= last.t_ns:
            return
        if (sample.vol, sample.invol, sample.oncpu_ns) != (last.vol, last.invol, last.oncpu_ns):
            self.moved_ns = sample.t_ns
        self.samples.append(sample)
        met = self.between or {self._met(sample): 1}
        self.kinds.append(met)
        for kind, times in met.items():
            self.counts[kind] = self.counts.get(kind, 0) + times
        self.locks.append(self.shared if self.between else self._locks_of(sample))
        self.between, self.shared = {}, []
        self.uninterruptible_ns.append(sched.uninterruptible_ns if sched else None)
        while len(self.samples) > 2 and self.samples[1].t_ns <= oldest_ns:
            del self.samples[0], self.uninterruptible_ns[0], self.locks[0]
            for kind, times in self.kinds.pop(0).items():
                self.counts[kind] -= times

    @property
    def shared_futexes(self) -> Counter[int]:
        """Futexes between processes at which samples and looks met the main thread."""
        return Counter(chain.from_iterable(self.locks)) if any(self.locks) else _NONE

    def facts(self, info: ProcInfo, role: Role, own_wakes: tuple[float, float] | None = None) -> ProcFacts:
        """The process's facts over the window; rates are zero while there is only one sample."""
        older, newer = self.samples[0], self.samples[-1]
        ns = max(1, newer.t_ns - older.t_ns)
        cores = max(0, newer.utime_ns + newer.stime_ns - older.utime_ns - older.stime_ns) / ns
        asleep = {kind: count for kind, count in self.counts.items() if count and kind != waits.ONCPU}
        unsampled = not asleep
        run, runnable = self._counters(ns, cores, unsampled)
        kinds = self._sleep_kinds(ns, max(0.0, 1.0 - run - runnable), asleep)
        threaded = older if older.threads else next((sample for sample in self.samples if sample.threads), None)
        return ProcFacts(
            pid=newer.pid, older=older, newer=newer, info=info, role=role, seconds=ns / 1e9, run=run, runnable=runnable, cores=cores,
            kinds=kinds, unsampled=unsampled, began_ns=self.began_ns, still_s=(newer.t_ns - self.moved_ns) / 1e9, threaded=threaded,
            children=max(0, (newer.children_ns or 0) - (older.children_ns or 0)) / ns if older.children_ns is not None else 0.0,
            samples=self.samples, kind_of=self.kind_of, futex=self.futex, grown_bytes=newer.rss_bytes - self.first_rss_bytes,
            own_wakes=own_wakes, shared_futexes=self.shared_futexes, met_at_locks=self.counts.get(waits.LOCK, 0),
        )  # fmt: skip

    def shares(self) -> tuple[float, ...]:
        """Shares of the window: the main thread on a CPU, CPUs of the whole process, the main thread waiting for a CPU (0 where the kernel
        does not count it), and half the share of looks that met it at a disk and at a lock, for looks are few and scatter."""
        older, newer = self.samples[0], self.samples[-1]
        ns, total = max(1, newer.t_ns - older.t_ns), sum(self.counts.values()) or 1
        cores = newer.utime_ns + newer.stime_ns - older.utime_ns - older.stime_ns
        run = (newer.oncpu_ns or 0) - (older.oncpu_ns or 0)
        late = (newer.run_delay_ns or 0) - (older.run_delay_ns or 0)
        disk, lock = self.counts.get(waits.DISK, 0), self.counts.get(waits.LOCK, 0)
        return run / ns, cores / ns, late / ns, disk / total / 2, lock / total / 2

    def _counters(self, ns: int, cores: float, always_on_cpu: bool) -> tuple[float, float]:
        """(on-CPU share, runnable share) of the main thread by schedstat; without it (CPUs of the whole process, at most 1; 0)."""
        older, newer = self.samples[0], self.samples[-1]
        if older.oncpu_ns is None or newer.oncpu_ns is None or older.run_delay_ns is None or newer.run_delay_ns is None:
            return min(1.0, cores), 0.0
        run = min(1.0, max(0, newer.oncpu_ns - older.oncpu_ns) / ns)
        wait = max(0, newer.run_delay_ns - older.run_delay_ns) / ns
        if run + wait < policy.HARDLY and len(self.kinds) > 2 and always_on_cpu:
            wait = 1.0  # never off the run queue and never on a CPU: the delay is booked only when it gets one
        return run, min(1.0 - run, wait)

    def _sleep_kinds(self, ns: int, sleep: float, counts: dict[str, int]) -> dict[str, float]:
        """Kind of wait -> share of the window: ``sleep`` spread over the sampled kinds, its uninterruptible part by the probe if that
        ran."""
        probed = self._uninterruptible(ns)
        if probed is None:
            return _spread(sleep, counts or self._unsampled())
        met = sleep * counts.get(waits.DISK, 0) / (sum(counts.values()) or 1)
        counts.pop(waits.DISK, None)
        disk = min(sleep, met if met - probed >= policy.QUARTER else probed)
        kinds = _spread(sleep - disk, counts or {waits.UNKNOWN: 1})
        if disk > 0.0:
            kinds[waits.DISK] = disk
        return kinds

    def _uninterruptible(self, ns: int) -> float | None:
        first, last = self.uninterruptible_ns[0], self.uninterruptible_ns[-1]
        return None if first is None or last is None or last < first else (last - first) / ns

    def _unsampled(self) -> dict[str, int]:
        """The kind for sleeps that no sample met. They were short: waits for the disk if the process read from one."""
        older, newer = self.samples[0], self.samples[-1]
        reads = newer.read_bytes is not None and older.read_bytes is not None and newer.read_bytes - older.read_bytes >= policy.READ_BYTES
        return {waits.DISK if reads else waits.UNKNOWN: 1}


def _at_birth(sample: ProcSample, born_ns: int) -> ProcSample:
    """The process's sample at its birth: all counters zero."""
    zero = {name: 0 for name in _COUNTERS if getattr(sample, name) is not None}
    return replace(sample, t_ns=born_ns, state="R", syscall=None, syscall_arg=None, wchan=None, threads=[], **zero)


def _spread(share: float, counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {kind: share * count / total for kind, count in counts.items()} if share > 0.0 else {}


class GpuTrack:
    """The readings of one GPU: utilization weighted by time, and the values in force of the other fields."""

    __slots__ = (
        "at_work_ns", "begun_ns", "between", "board", "breaks", "busy", "busy_since_ns", "exact_ns", "free_mhz", "generations", "held_ns",
        "idle_since_ns", "last_ns", "link", "linked", "listed", "moved", "noted_ns", "pids", "rates", "readings", "replays", "rhythm",
        "slowed", "stretches", "worked_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.readings: deque[tuple[int, float, float | None, float | None, int]] = deque()
        """(until t_ns, share of the time in which kernels ran, SM activity, power, throttle mask)"""
        self.between: list[float] = []
        self.busy: deque[tuple[int, float]] = deque()
        """(t_ns, per cent of the time in which kernels ran) of every reading in the window and shortly before it."""
        self.rhythm = Rhythm()
        self.last_ns = self.noted_ns = self.exact_ns = 0
        self.idle_since_ns: int | None = None
        self.busy_since_ns: int | None = None
        self.at_work_ns = 0  # since when every reading had work; 0 if the last one had none
        self.begun_ns: deque[int] = deque(maxlen=policy.OFTEN)  # the last times at which it began to work
        self.stretches: deque[tuple[int, int]] = deque()
        """(from, until) of idle stretches that followed steady work and reach into the window"""
        self.breaks = Breaks()
        self.link = "pcie"  # its link to the host: ``pcie`` or ``c2c``
        self.moved: deque[tuple[int, int, int]] = deque()  # (t_ns, bytes over that link both ways, bytes sent), cumulative
        self.linked: deque[tuple[int, int]] = deque()  # (t_ns, bytes over NVLink both ways), cumulative
        self.rates: deque[tuple[int, float, float]] = deque(maxlen=LATEST_RATES)
        """(t_ns, bytes per second over PCIe both ways, bytes per second sent), each over 20 ms, if the driver has no counters"""
        self.listed: deque[tuple[int, dict[int, float]]] = deque()  # (t_ns, pid -> per cent of the time in which its kernels ran)
        self.generations: deque[tuple[int, float]] = deque()  # (t_ns, generation of the PCIe link)
        self.slowed: deque[tuple[int, dict[str, float]]] = deque(maxlen=2)  # (t_ns, reason -> ns for which it held the clocks down)
        self.replays: deque[tuple[int, float]] = deque(maxlen=2)  # (t_ns, packets that the PCIe link sent again)
        self.held_ns = 0  # when a process that is seen here last used it
        self.worked_ns = 0
        self.board: GpuBoard | None = None
        self.free_mhz: float | None = None
        self.pids: frozenset[int] = frozenset()  # processes that compute on it; the last known ones if it does not answer

    def look(self, gpu: Gpu | GpuReading) -> None:
        """Take in a reading between two pushes: its utilization counts in the mean, its power in the rhythm. With GPM the utilization is
        the share of time in which kernels ran; NVML's own also counts copies."""
        if gpu.gr_active_pct is not None:
            self.exact_ns = gpu.t_ns
        busy_pct = gpu.gr_active_pct if gpu.t_ns - self.exact_ns < policy.READING_NS else gpu.util_pct
        if busy_pct is not None:
            self.between.append(busy_pct)
            self.busy.append((gpu.t_ns, busy_pct))
            self._note_idle(busy_pct, gpu.t_ns)
        if gpu.power_w is not None and gpu.power_instant is not False:
            self.rhythm.push(gpu.t_ns, gpu.power_w)
        elif gpu.util_pct is not None:
            self.rhythm.push(gpu.t_ns, gpu.util_pct, averaged=True)

    @property
    def is_exact(self) -> bool:
        """True if utilization covers known stretches of time, as GPM's does; NVML's own is a mean over stretches that differ by GPU."""
        return bool(self.busy) and self.busy[-1][0] - self.exact_ns < policy.READING_NS

    @property
    def util_now(self) -> float | None:
        """The last reading's utilization, as a share; None if it is older than the last push."""
        return self.readings[-1][1] if self.readings and self.readings[-1][0] == self.last_ns else None

    def push(self, gpu: GpuBoard, t_ns: int, oldest_ns: int) -> None:
        """Take the readings since the last push, else the standing ones, as valid for the time since then."""
        self.board = gpu
        self.pids = gpu.compute_pids
        sm_active, exact = _fresh(gpu, "sm_active_pct", t_ns), _fresh(gpu, "gr_active_pct", t_ns)
        util = _fresh(gpu, "util_pct", t_ns) if exact is None else exact
        if util is not None and self.between:
            util = sum(self.between) / len(self.between)
        elif util is not None:
            self._note_idle(util, t_ns)
        self.between.clear()
        if util is None:
            util = sm_active
        if util is not None:
            mask = gpu.values.get("throttle_mask")
            power = _fresh(gpu, "power_w", t_ns)
            activity = None if sm_active is None else sm_active / 100
            self.readings.append((t_ns, util / 100, activity, power, mask if isinstance(mask, int) else 0))
        self._push_moved(gpu, oldest_ns)
        self._push_listed(gpu, oldest_ns)
        self._push_link(gpu)
        self._push_slowed(gpu)
        while len(self.readings) > 1 and self.readings[1][0] <= oldest_ns:
            self.readings.popleft()
        while self.busy and self.busy[0][0] <= oldest_ns - policy.STEADY_NS:
            self.busy.popleft()
        self.last_ns = t_ns

    def _note_idle(self, util: float, t_ns: int) -> None:
        self.breaks.note(util / 100, t_ns)
        began_ns, self.noted_ns = self.noted_ns or t_ns, t_ns
        if util <= 0:
            self.at_work_ns = 0
        elif not self.at_work_ns:
            self.at_work_ns = began_ns
            self.begun_ns.append(t_ns)
        if util >= 2:
            if self.idle_since_ns is not None or self.busy_since_ns is None:
                self.busy_since_ns = began_ns
            self.idle_since_ns = None
            self.worked_ns = t_ns
            return
        if util > 0 and self._makes_steps(t_ns):
            self.worked_ns = t_ns
        if self.idle_since_ns is None:
            self.idle_since_ns = began_ns
            if self.busy_since_ns is not None and began_ns - self.busy_since_ns >= policy.STEADY_NS:
                self.stretches.append((began_ns, t_ns))
        elif self.stretches and self.stretches[-1][0] == self.idle_since_ns:
            self.stretches[-1] = (self.idle_since_ns, t_ns)

    def _makes_steps(self, t_ns: int) -> bool:
        """The value of `GpuFacts.makes_steps`."""
        again = len(self.begun_ns) == policy.OFTEN and self.begun_ns[0] > t_ns - policy.STEPS_NS
        return again or 0 < self.at_work_ns <= t_ns - policy.STEADY_NS

    def shares(self) -> tuple[float, ...]:
        """Means over the window: utilization, SM activity, power as a share of its limit, the time of the process that ran most, and of all
        others; 0 where one is not read."""
        limit_w = (self.board.number("power_limit_w") if self.board is not None else None) or math.inf
        ran = sorted(self._ran().values())
        most, all_others = (ran[-1], sum(ran[:-1])) if ran else (0.0, 0.0)
        return self._mean(1) or 0.0, self._mean(2) or 0.0, (self._mean(3) or 0.0) / limit_w, most, all_others

    def _stretch_s(self, oldest_ns: int) -> float:
        while self.stretches and self.stretches[0][1] <= oldest_ns:
            self.stretches.popleft()
        return max((until - since for since, until in self.stretches), default=0) / 1e9

    def facts(self, index: int, instance: int | None = None, name: str = "") -> GpuFacts:
        """Means over the window; None for what is not read. ``instance``: the facts are of this part of the GPU, which has the name
        ``name``."""
        board = self.board or GpuBoard(index)
        fresh = bool(self.readings) and self.readings[-1][0] == self.last_ns
        idle_ns = self.last_ns - self.idle_since_ns if self.idle_since_ns is not None else 0
        number, oldest_ns = board.number, self.readings[0][0] if self.readings else 0
        facts = GpuFacts(
            index, self._mean(1) if fresh else None, self._mean(2), self._mean(3),
            **{name: number(name) for name in _STANDING}, throttle_mask=self._mask(), pids=self.pids,
            best_gen=max((generation for _, generation in self.generations), default=None), pcie_replays_per_s=self._replays_per_s(),
            slowed_parts=self._slowed_parts(), power_smoothing=bool(board.values.get("power_smoothing")),
            near_cpus=parse_cpus(board.text("near_cpus")),
            ran=self._ran(), neighbours=(), loss=loss_of(board, self.last_ns),
            unmeasurable="util_pct" in board.missing and "gr_active_pct" not in board.values,
            stretch_s=self._stretch_s(oldest_ns), idle_s=idle_ns / 1e9,
            makes_steps=self._makes_steps(self.last_ns),
            breaks_s=self.breaks.lost_s(oldest_ns), sunk_s=self.breaks.sunk_s(oldest_ns),
            dips_s=self.breaks.dips_s(oldest_ns),
            pauses=(*self.breaks.spans(oldest_ns), *(span for span in self.stretches if span[1] - span[0] >= policy.LOST_NS)),
            host_bytes_per_s=self._host(1), host_back_bytes_per_s=self._host(2), nvlink_bytes_per_s=self._nvlink(),
            worked_ns=self.worked_ns, util_now=self.util_now,
            split=bool(board.values.get("mig_mode")), instance=instance, name=name or str(index),
        )  # fmt: skip
        if facts.sm_clock_mhz and (facts.util or 0.0) >= policy.MOST and not slowed_by(facts):
            self.free_mhz = max(self.free_mhz or 0.0, facts.sm_clock_mhz)
        return replace(facts, sm_clock_free_mhz=self.free_mhz)

    def _host(self, column: int) -> float | None:
        """Bytes per second over the link to the host, both ways (1) or sent (2): by the driver's counters, else by its rates of PCIe, each
        over 20 ms. Such a short reading, in phase with the steps, may catch a copy or miss it."""
        if len(self.moved) >= 2 and self.moved[-1][0] > self.moved[0][0]:
            return (self.moved[-1][column] - self.moved[0][column]) * 1e9 / (self.moved[-1][0] - self.moved[0][0])
        rates = [rate[column] for rate in self.rates if rate[0] > self.last_ns - policy.RATES_NS]
        return max(rates[-1], sum(rates) / len(rates)) if rates else None

    def _nvlink(self) -> float | None:
        if len(self.linked) < 2 or self.linked[-1][0] <= self.linked[0][0]:
            return None
        return (self.linked[-1][1] - self.linked[0][1]) * 1e9 / (self.linked[-1][0] - self.linked[0][0])

    def _push_moved(self, gpu: GpuBoard, oldest_ns: int) -> None:
        link = "c2c" if gpu.values.get("c2c_links") else "pcie"
        if link != self.link:  # the number of its links to a Grace CPU is known some time after its first bytes
            self.link = link
            self.moved.clear()
            self.rates.clear()
        rx, tx = gpu.values.get(f"{link}_rx_bytes"), gpu.values.get(f"{link}_tx_bytes")
        read_ns = gpu.read_ns.get(f"{link}_rx_bytes", 0)
        if not isinstance(rx, int):
            self.moved.clear()  # the driver gives its own rates for that time
        elif not self.moved or self.moved[-1][0] < read_ns:
            sent = tx if isinstance(tx, int) else 0
            if self.moved and rx + sent < self.moved[-1][1]:
                self.moved.clear()
            self.moved.append((read_ns, rx + sent, sent))
        while len(self.moved) > 2 and self.moved[1][0] <= oldest_ns:
            self.moved.popleft()
        self._push_linked(gpu, oldest_ns)
        at, told = gpu.read_ns.get("pcie_rx_bytes_per_s", 0), gpu.number("pcie_rx_bytes_per_s")
        if told is not None and link == "pcie" and (not self.rates or self.rates[-1][0] < at):
            rate = gpu.number("pcie_tx_bytes_per_s") or 0.0
            self.rates.append((at, told + rate, rate))

    def _push_linked(self, gpu: GpuBoard, oldest_ns: int) -> None:
        both, read_ns = [gpu.values.get(f"nvlink_{way}_bytes") for way in ("rx", "tx")], gpu.read_ns.get("nvlink_rx_bytes", 0)
        known = [count for count in both if isinstance(count, int)]
        if len(known) < len(both) or (self.linked and sum(known) < self.linked[-1][1]):
            self.linked.clear()
        if len(known) == len(both) and (not self.linked or self.linked[-1][0] < read_ns):
            self.linked.append((read_ns, sum(known)))
        while len(self.linked) > 2 and self.linked[1][0] <= oldest_ns:
            self.linked.popleft()

    def _push_link(self, gpu: GpuBoard) -> None:
        for kept, name in ((self.generations, "pcie_gen"), (self.replays, "pcie_replays")):
            read_ns, number = gpu.read_ns.get(name, 0), gpu.number(name)
            if number is not None and (not kept or kept[-1][0] < read_ns):
                kept.append((read_ns, number))
        while len(self.generations) > 1 and self.generations[0][0] <= self.generations[-1][0] - policy.GENERATIONS_NS:
            self.generations.popleft()

    def _push_slowed(self, gpu: GpuBoard) -> None:
        counted = {word: ns for word, name in SLOWED.items() if (ns := gpu.number(name)) is not None}
        read_ns = max((gpu.read_ns.get(name, 0) for name in SLOWED.values()), default=0)
        if counted and (not self.slowed or self.slowed[-1][0] < read_ns):
            self.slowed.append((read_ns, counted))

    def _slowed_parts(self) -> dict[str, float]:
        """The value of `GpuFacts.slowed_parts`."""
        if len(self.slowed) < 2:
            return {}
        (since_ns, before), (until_ns, now) = self.slowed
        grown = {word: (ns - before.get(word, ns)) / (until_ns - since_ns) for word, ns in now.items()}
        return {word: min(1.0, part) for word, part in grown.items() if part > 0.0}

    def _replays_per_s(self) -> float | None:
        if len(self.replays) < 2:
            return None
        (since_ns, before), (until_ns, now) = self.replays
        return max(0.0, now - before) * 1e9 / (until_ns - since_ns)

    def _push_listed(self, gpu: GpuBoard, oldest_ns: int) -> None:
        read_ns = gpu.read_ns.get("procs", 0)
        if not self.listed or self.listed[-1][0] < read_ns:
            self.listed.append((read_ns, {proc.pid: proc.sm_pct for proc in gpu.procs if proc.sm_pct is not None and "C" in proc.kind}))
        while self.listed and self.listed[0][0] <= oldest_ns:
            self.listed.popleft()

    def _ran(self) -> dict[int, float]:
        """The value of `GpuFacts.ran`. A list of a process's first second has no sample of it yet, and counts as one without work."""
        found: dict[int, float] = {}
        for _, listed in self.listed:
            for pid, pct in listed.items():
                found[pid] = found.get(pid, 0.0) + pct / 100 / len(self.listed)
        return found

    def _mean(self, column: int) -> float | None:
        """Mean weighted by time; the first reading only opens the window unless it is the only one. None without a reading."""
        total = weight = 0.0
        before = self.readings[0][0] if self.readings else 0
        for row in self.readings:
            value = row[column]
            if value is not None and row[0] > before:
                total += value * (row[0] - before)
                weight += row[0] - before
            before = row[0]
        if weight == 0.0:
            return self.readings[-1][column] if self.readings else None
        return total / weight

    def _mask(self) -> int:
        masks = [row[4] for row in self.readings]
        if not any(masks):
            return 0
        return sum(bit for bit in (1 << i for i in range(9)) if 2 * sum(1 for mask in masks if mask & bit) >= len(masks) > 0)


def some_worked(gpus: Sequence[GpuTrack], oldest_ns: int) -> tuple[float, float] | None:
    """(least, most) share of the window in which some GPU worked; None if the readings cannot show it.

    A reading is a mean: two of 40 % may cover the same 40 ms or different ones. The most is reached if all work apart. The least is the
    work of the busiest GPU, and more if a high reading next to a low one, or all readings together (`_mirrored`), show it.
    """
    readings = sorted((t_ns, number, pct) for number, gpu in enumerate(gpus) for t_ns, pct in gpu.busy)
    latest: dict[int, float] = {}
    rows, since_ns = list[tuple[int, tuple[float, ...]]](), 0
    for t_ns, number, pct in readings:
        if len(latest) == len(gpus) and t_ns > max(since_ns, oldest_ns):
            rows.append((t_ns - max(since_ns, oldest_ns), tuple(latest.values())))
        latest[number], since_ns = pct, t_ns
    whole = 100.0 * sum(ns for ns, _ in rows)
    if not rows:
        return None
    most = sum(ns * min(100.0, sum(pcts)) for ns, pcts in rows) / whole
    if all(gpu.is_exact for gpu in gpus) and _mirrored(rows):
        return most, most
    by_turns = sum(ns * (max(pcts) if max(pcts) - min(pcts) >= 100 * policy.HALF else sum(pcts) / len(pcts)) for ns, pcts in rows) / whole
    return max(by_turns, max(sum(ns * pcts[i] for ns, pcts in rows) / whole for i in range(len(gpus)))), most


def _mirrored(rows: Sequence[tuple[int, tuple[float, ...]]]) -> bool:
    """True if readings of the same moments rise and fall against each other, so that their sum stays at 100 %: one GPU works while the
    other does not. Readings of GPUs that work together rise and fall together, for steps and readings are not in phase; a constant lower
    sum may be the demand for what they do side by side."""
    whole = sum(ns for ns, _ in rows)

    def variance(values: Sequence[float]) -> float:
        mean = sum(ns * value for (ns, _), value in zip(rows, values, strict=True)) / whole
        return sum(ns * (value - mean) ** 2 for (ns, _), value in zip(rows, values, strict=True)) / whole

    each = [variance([pcts[i] for _, pcts in rows]) for i in range(len(rows[0][1]))]
    sums = [sum(pcts) for _, pcts in rows]
    full = all(abs(one - 100.0) <= 100 * policy.TENTH for one in sums)
    return full and sum(each) >= len(each) * policy.SWAYS_PCT**2 and variance(sums) <= policy.TENTH * sum(each)


def _fresh(gpu: GpuBoard, name: str, t_ns: int) -> float | None:
    return gpu.number(name) if gpu.read_ns.get(name, 0) >= t_ns - policy.STALE_NS else None
