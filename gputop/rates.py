"""From two readings of the same subject to rates. Pure.

Every function takes the older and the newer reading and returns None where they are no pair: another process under the
same pid, no time between them, or a counter that went back (a reset, a wrap).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputop.frame import CgroupSample
from gputop.frame import CpuSample
from gputop.frame import DiskSample
from gputop.frame import NetSample
from gputop.frame import ProcSample
from gputop.frame import ThreadSample

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ProcRates:
    """What a process did between two readings; None is not measured. Shares are of one CPU's time, so 250 % is 2.5 CPUs."""

    seconds: float
    cpu_pct: float
    """The whole process's: its threads' on-CPU time where they were read one by one, else utime + stime."""
    main_cpu_pct: float | None
    system_pct: float
    runq_pct: float | None
    """Run-queue delay of the main thread; cgroup throttling counts as such."""
    worst_runq_pct: float | None
    """Run-queue delay of the thread that had most of it, where threads were read."""
    worst_runq_tid: int | None
    switches_per_s: float | None
    """Voluntary and involuntary, of all threads that were read, else of the main thread."""
    invol_per_s: float | None
    main_vol_per_s: float | None
    """Voluntary switches of the main thread: how often it went to sleep."""
    read_bytes_per_s: float | None
    write_bytes_per_s: float | None
    majflt_per_s: float | None
    minflt_per_s: float | None
    blkio_pct: float | None
    """Delay on block I/O and swap-in (stat field 42)."""


def proc_rates(older: ProcSample, newer: ProcSample) -> ProcRates | None:
    """Rates of one process; None where the two are not the same process or not in order."""
    ns = newer.t_ns - older.t_ns
    utime, stime = newer.utime_ns - older.utime_ns, newer.stime_ns - older.stime_ns
    if older.pid != newer.pid or older.start_ticks != newer.start_ticks or ns <= 0 or utime < 0 or stime < 0:
        return None
    per_s = SECOND_NS / ns
    threads = thread_deltas(older.threads, newer.threads)
    worst = max(threads, key=_run_delay, default=None)
    main_ns = delta(older.oncpu_ns, newer.oncpu_ns)
    vol, invol = _switches(older, newer, threads)
    return ProcRates(
        seconds=ns / SECOND_NS,
        cpu_pct=100 * _cpu_ns(newer, threads, main_ns, utime + stime) / ns,
        main_cpu_pct=_share_pct(main_ns, ns),
        system_pct=100 * stime / ns,
        runq_pct=_share_pct(delta(older.run_delay_ns, newer.run_delay_ns), ns),
        worst_runq_pct=None if worst is None else 100 * worst.run_delay_ns / ns,
        worst_runq_tid=None if worst is None else worst.tid,
        switches_per_s=None if vol is None or invol is None else (vol + invol) * per_s,
        invol_per_s=None if invol is None else invol * per_s,
        main_vol_per_s=_times(delta(older.vol, newer.vol), per_s),
        read_bytes_per_s=_times(delta(older.read_bytes, newer.read_bytes), per_s),
        write_bytes_per_s=_times(delta(older.write_bytes, newer.write_bytes), per_s),
        majflt_per_s=_times(delta(older.majflt, newer.majflt), per_s),
        minflt_per_s=_times(delta(older.minflt, newer.minflt), per_s),
        blkio_pct=_share_pct(delta(older.blkio_delay_ns, newer.blkio_delay_ns), ns),
    )


def delta(older: int | None, newer: int | None) -> int | None:
    """The increment of a cumulative counter; None where either is missing or it went back."""
    if older is None or newer is None or newer < older:
        return None
    return newer - older


def counter_per_s(older: int | None, newer: int | None, ns: int) -> float | None:
    """A counter's increments per second over ``ns``."""
    return _times(delta(older, newer), SECOND_NS / ns) if ns > 0 else None


def power_w(older_mj: int | None, newer_mj: int | None, ns: int) -> float | None:
    """True mean power between two readings of NVML's energy counter (mJ)."""
    mj = delta(older_mj, newer_mj)
    return None if mj is None or ns <= 0 else mj * 1e6 / ns


def thread_deltas(older: Sequence[ThreadSample], newer: Sequence[ThreadSample]) -> list[ThreadSample]:
    """Increments of the threads in both readings, and of those born between them from zero; states are the newer's."""
    before = {thread.tid: thread for thread in older}
    found = []
    for thread in newer if older else ():
        old = before.get(thread.tid)
        if old is None or thread.oncpu_ns < old.oncpu_ns:
            found.append(thread)
            continue
        found.append(ThreadSample(
            thread.tid, thread.oncpu_ns - old.oncpu_ns, max(0, thread.run_delay_ns - old.run_delay_ns), thread.timeslices - old.timeslices,
            thread.state, delta(old.vol, thread.vol), delta(old.invol, thread.invol),
        ))  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class CpuRates:
    """Shares of one CPU's time."""

    cpu: int
    busy_pct: float
    user_pct: float
    system_pct: float
    iowait_pct: float
    steal_pct: float


def cpu_rates(older: Sequence[CpuSample], newer: Sequence[CpuSample]) -> dict[int, CpuRates]:
    """Per CPU, without those that did not advance (offline, or read twice within a tick)."""
    before = {sample.cpu: sample for sample in older}
    rates = {}
    for now in newer:
        old = before.get(now.cpu)
        pair = None if old is None else _cpu_pair(old, now)
        if pair is not None:
            rates[now.cpu] = pair
    return rates


def _cpu_pair(old: CpuSample, now: CpuSample) -> CpuRates | None:
    user, system = now.user_ns - old.user_ns, now.system_ns - old.system_ns + now.irq_ns - old.irq_ns
    idle, iowait, steal = now.idle_ns - old.idle_ns, max(0, now.iowait_ns - old.iowait_ns), now.steal_ns - old.steal_ns
    total = user + system + idle + iowait + steal
    if total <= 0 or min(user, system, idle, steal) < 0:
        return None
    share = 100 / total
    return CpuRates(now.cpu, (user + system + steal) * share, user * share, system * share, iowait * share, steal * share)


@dataclass(frozen=True, slots=True)
class DiskRates:
    """One block device."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    reads_per_s: float
    writes_per_s: float
    busy_pct: float
    read_ms: float | None
    """Mean time of a read, None where there was none."""


def disk_rates(older: DiskSample, newer: DiskSample, ns: int) -> DiskRates | None:
    """Rates of one device between two readings ``ns`` apart."""
    reads, writes = newer.reads - older.reads, newer.writes - older.writes
    if older.name != newer.name or ns <= 0 or reads < 0 or writes < 0:
        return None
    per_s = SECOND_NS / ns
    return DiskRates(
        (newer.read_bytes - older.read_bytes) * per_s, (newer.write_bytes - older.write_bytes) * per_s, reads * per_s, writes * per_s,
        min(100.0, 100e6 * (newer.io_ms - older.io_ms) / ns), (newer.read_ms - older.read_ms) / reads if reads else None,
    )  # fmt: skip


def net_rates(older: NetSample, newer: NetSample, ns: int) -> tuple[float, float] | None:
    """Received and sent bytes per second of one interface."""
    rx, tx = delta(older.rx_bytes, newer.rx_bytes), delta(older.tx_bytes, newer.tx_bytes)
    if rx is None or tx is None or ns <= 0:
        return None
    return rx * SECOND_NS / ns, tx * SECOND_NS / ns


@dataclass(frozen=True, slots=True)
class CgroupRates:
    """CPU quota of one cgroup."""

    throttled_periods_pct: float | None
    """Share of its periods in which it was throttled."""
    throttled_pct: float | None
    """Throttled time, of all CPUs' run queues together, per wall time."""


def cgroup_rates(older: CgroupSample, newer: CgroupSample, ns: int) -> CgroupRates | None:
    """Throttling between two readings ``ns`` apart."""
    if older.path != newer.path or ns <= 0:
        return None
    periods, throttled = delta(older.nr_periods, newer.nr_periods), delta(older.nr_throttled, newer.nr_throttled)
    share = 100 * throttled / periods if periods and throttled is not None else None
    return CgroupRates(share, _share_pct(delta(older.throttled_ns, newer.throttled_ns), ns))


def _cpu_ns(newer: ProcSample, threads: Sequence[ThreadSample], main_ns: int | None, ticks_ns: int) -> int:
    """Nanosecond counters where they cover every thread; utime and stime advance by whole ticks of 10 ms."""
    if len(threads) >= newer.num_threads > 0:
        return sum(thread.oncpu_ns for thread in threads)
    if newer.num_threads == 1 and main_ns is not None:
        return main_ns
    return ticks_ns


def _switches(older: ProcSample, newer: ProcSample, threads: Sequence[ThreadSample]) -> tuple[int | None, int | None]:
    counted = [(thread.vol, thread.invol) for thread in threads if thread.vol is not None and thread.invol is not None]
    if counted:
        return sum(vol or 0 for vol, _ in counted), sum(invol or 0 for _, invol in counted)
    return delta(older.vol, newer.vol), delta(older.invol, newer.invol)


def _run_delay(thread: ThreadSample) -> int:
    return thread.run_delay_ns


def _share_pct(part_ns: int | None, ns: int) -> float | None:
    return None if part_ns is None else 100 * part_ns / ns


def _times(value: int | None, factor: float) -> float | None:
    return None if value is None else value * factor
