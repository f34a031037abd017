"""Rates from two readings of the same subject. Pure functions.

Each function takes the older and the newer reading. It returns None if they make no pair: another process has the pid, no time passed
between them, or a counter went back (a reset, a wrap).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gputop.model.board import Board, GpuBoard
from gputop.model.frame import SECOND_NS, CgroupSample, CpuSample, DiskSample, NetSample, ProcSample, ThreadSample

TICK_NS = 10_000_000  # ns: the step of utime and stime (USER_HZ 100)
LEAST_PROBED_NS = SECOND_NS - SECOND_NS // 10  # ns, for `ProbedSwitches`: the sched probe reports most threads once a second


class ProcRates(Struct, frozen=True):
    """Rates of a process between two readings; None: not measured. Shares are of one CPU's time: 250 % is 2.5 CPUs."""

    cpu_pct: float
    """The process's CPU time: on-CPU time of its threads if all were read and none ended with more than a tick, else utime + stime."""
    system_pct: float
    runq_pct: float | None
    """Run-queue delay of the main thread, cgroup throttling included. None if the process has other threads that are not read: the main
    thread may only wait for them."""
    switches_per_s: float | None  # voluntary and involuntary, of all threads; None if a thread that ran was not counted
    invol_per_s: float | None
    read_bytes_per_s: float | None
    write_bytes_per_s: float | None
    blkio_pct: float | None  # delay on block I/O and swap-in (stat field 42)


class ProbedSwitches:
    """Context switches of whole processes, from the sched probe's counters on two boards at least `LEAST_PROBED_NS` apart."""

    def __init__(self, older: Board, newer: Board) -> None:
        self._older, self._newer = older, newer
        self._ns = newer.probed_ns - older.probed_ns if older.probed_ns else 0
        self._sums: dict[int, tuple[int, int]] | None = None

    def per_s(self, pid: int) -> tuple[float | None, float | None]:
        """Voluntary and involuntary switches a second of all threads; None, None if the probe does not run, or too short."""
        if self._ns < LEAST_PROBED_NS:
            return None, None
        if self._sums is None:
            self._sums = self._added_up()
        vol, invol = self._sums.get(pid, (0, 0))
        return vol * SECOND_NS / self._ns, invol * SECOND_NS / self._ns

    def _added_up(self) -> dict[int, tuple[int, int]]:
        before, sums = self._older.threads, dict[int, tuple[int, int]]()
        for tid, thread in self._newer.threads.items():
            old = before.get(tid)
            if old is thread:
                continue
            vol, invol = sums.get(thread.pid, (0, 0))
            if old is not None and old.start_ns == thread.start_ns:
                sums[thread.pid] = vol + thread.vol - old.vol, invol + thread.invol - old.invol
            elif thread.start_ns > self._older.probed_ns:  # an older thread that is new here did part of its switches before
                sums[thread.pid] = vol + thread.vol, invol + thread.invol
        return sums


def proc_rates(older: ProcSample, newer: ProcSample, probed: ProbedSwitches | None = None) -> ProcRates | None:
    """Rates of one process; None if the samples are of two processes, or not in order.

    ``probed`` gives the switches of a process with unread threads: a bystander, or one with very many threads.
    """
    ns = newer.t_ns - older.t_ns
    utime, stime = newer.utime_ns - older.utime_ns, newer.stime_ns - older.stime_ns
    if older.pid != newer.pid or older.start_ticks != newer.start_ticks or ns <= 0 or utime < 0 or stime < 0:
        return None
    threads = thread_deltas(older, newer)
    main_ns = delta(older.oncpu_ns, newer.oncpu_ns)
    vol_per_s, invol_per_s = _switches_per_s(older, newer, threads, probed)
    return ProcRates(
        cpu_pct=100 * _cpu_ns(newer, threads, main_ns, utime + stime) / ns,
        system_pct=100 * stime / ns,
        runq_pct=_share_pct(delta(older.run_delay_ns, newer.run_delay_ns), ns) if newer.threads or newer.num_threads == 1 else None,
        switches_per_s=None if vol_per_s is None or invol_per_s is None else vol_per_s + invol_per_s,
        invol_per_s=invol_per_s,
        read_bytes_per_s=counter_per_s(older.read_bytes, newer.read_bytes, ns),
        write_bytes_per_s=counter_per_s(older.write_bytes, newer.write_bytes, ns),
        blkio_pct=_share_pct(delta(older.blkio_delay_ns, newer.blkio_delay_ns), ns),
    )


def delta(older: int | None, newer: int | None) -> int | None:
    """The increment of a cumulative counter; None if either reading is missing or it went back."""
    if older is None or newer is None or newer < older:
        return None
    return newer - older


def counter_per_s(older: int | None, newer: int | None, ns: int) -> float | None:
    """The increments per second of a counter read twice, ``ns`` apart."""
    return _times(delta(older, newer), SECOND_NS / ns) if ns > 0 else None


def bytes_per_s(older: float | None, newer: float | None, ns: int, driver_rate: float | None) -> float | None:
    """Bytes per second of a counter read twice, ``ns`` apart; ``driver_rate`` if the readings make no pair."""
    if older is None or newer is None or newer < older or ns <= 0:
        return driver_rate
    return (newer - older) * SECOND_NS / ns


def gpu_bytes_per_s(older: GpuBoard | None, newer: GpuBoard, name: str) -> float | None:
    """`bytes_per_s` of one counter of a GPU, such as ``pcie_rx_bytes``."""
    before, driver_rate = older or GpuBoard(newer.index), newer.number(f"{name}_per_s")
    return bytes_per_s(before.number(name), newer.number(name), newer.read_ns.get(name, 0) - before.read_ns.get(name, 0), driver_rate)


def power_w(older_mj: int | None, newer_mj: int | None, ns: int) -> float | None:
    """Mean power in W between two readings of NVML's energy counter (mJ), ``ns`` apart."""
    mj = delta(older_mj, newer_mj)
    return None if mj is None or ns <= 0 else mj * 1e6 / ns


def thread_deltas(older: ProcSample, newer: ProcSample) -> list[ThreadSample]:
    """The increments of each thread between two samples; a thread born between them counts from zero. States are the newer sample's.

    Most samples leave out threads that did not run. If the older sample left some out, a thread that only the newer one has may be old,
    and is skipped.
    """
    before = {thread.tid: thread for thread in older.threads}
    had_all = len(before) >= older.num_threads
    found = []
    for thread in newer.threads:
        old = before.get(thread.tid)
        if old is not None and thread.oncpu_ns >= old.oncpu_ns:
            found.append(_increment(old, thread))
        elif old is not None or had_all:
            found.append(thread)
    return found


def _increment(old: ThreadSample, new: ThreadSample) -> ThreadSample:
    return ThreadSample(
        tid=new.tid, oncpu_ns=max(0, new.oncpu_ns - old.oncpu_ns), run_delay_ns=max(0, new.run_delay_ns - old.run_delay_ns),
        timeslices=new.timeslices - old.timeslices, state=new.state, vol=delta(old.vol, new.vol), invol=delta(old.invol, new.invol),
    )  # fmt: skip


def pair_growth(older: int, newer: int) -> int:
    """The increment of a pair's sum (see `gputop.model.frame.Preempt`); a sum that went down began again at 0."""
    return newer if newer < older else newer - older


def cpu_deltas(older: Sequence[CpuSample], newer: Sequence[CpuSample]) -> dict[int, tuple[int, int]]:
    """CPU -> (ns in which it worked, ns in which it was idle or waited for I/O), for CPUs in both readings if their time advanced."""
    before = {sample.cpu: sample for sample in older}
    found = {}
    for now in newer:
        old = before.get(now.cpu)
        if old is None:
            continue
        worked_ns = _worked_ns(now) - _worked_ns(old)
        idle_ns = max(0, now.idle_ns + now.iowait_ns - old.idle_ns - old.iowait_ns)
        if worked_ns >= 0 and worked_ns + idle_ns > 0:
            found[now.cpu] = worked_ns, idle_ns
    return found


def stolen_shares(older: Sequence[CpuSample], newer: Sequence[CpuSample], deltas: dict[int, tuple[int, int]]) -> dict[int, float]:
    """CPU -> share (0 to 1) of its time that the hypervisor gave to other guests, for the CPUs of ``deltas`` (see `cpu_deltas`)."""
    before = {sample.cpu: sample.steal_ns for sample in older}
    stolen_ns = {sample.cpu: max(0, sample.steal_ns - before.get(sample.cpu, sample.steal_ns)) for sample in newer}
    return {cpu: stolen_ns[cpu] / (worked + idle) for cpu, (worked, idle) in deltas.items()}


def _worked_ns(cpu: CpuSample) -> int:
    return cpu.user_ns + cpu.system_ns + cpu.irq_ns + cpu.steal_ns


class DiskRates(Struct, frozen=True):
    """One block device."""

    read_bytes_per_s: float
    busy_pct: float


def disk_rates(older: DiskSample, newer: DiskSample, ns: int) -> DiskRates | None:
    """Rates of one block device read twice, ``ns`` apart."""
    if older.name != newer.name or ns <= 0 or newer.reads < older.reads or newer.writes < older.writes:
        return None
    return DiskRates((newer.read_bytes - older.read_bytes) * SECOND_NS / ns, min(100.0, 100e6 * (newer.io_ms - older.io_ms) / ns))


def net_rates(older: NetSample, newer: NetSample, ns: int) -> tuple[float, float] | None:
    """Received and sent bytes per second of one interface read twice, ``ns`` apart."""
    rx, tx = delta(older.rx_bytes, newer.rx_bytes), delta(older.tx_bytes, newer.tx_bytes)
    if rx is None or tx is None or ns <= 0:
        return None
    return rx * SECOND_NS / ns, tx * SECOND_NS / ns


def throttled_periods_pct(older: CgroupSample, newer: CgroupSample) -> float | None:
    """Share of a cgroup's quota periods in which it was throttled; None if no period passed."""
    periods, throttled = delta(older.nr_periods, newer.nr_periods), delta(older.nr_throttled, newer.nr_throttled)
    return 100 * throttled / periods if periods and throttled is not None else None


def _cpu_ns(newer: ProcSample, threads: Sequence[ThreadSample], main_ns: int | None, ticks_ns: int) -> int:
    """CPU ns of the process: from nanosecond counters if they cover every thread, else from utime and stime (``ticks_ns``)."""
    if len(threads) >= newer.num_threads > 0:
        exact_ns, alive_ns = sum(map(_oncpu, threads)), sum(map(_oncpu, newer.threads))
    elif newer.num_threads == 1 and main_ns is not None and newer.oncpu_ns is not None:
        exact_ns, alive_ns = main_ns, newer.oncpu_ns
    else:
        return ticks_ns
    # Only utime and stime still count threads that have ended, also threads that were born and ended between two readings.
    ended_ns = newer.utime_ns + newer.stime_ns - alive_ns
    return ticks_ns if ended_ns > TICK_NS else exact_ns


def _oncpu(thread: ThreadSample) -> int:
    return thread.oncpu_ns


def _switches_per_s(
    older: ProcSample, newer: ProcSample, threads: Sequence[ThreadSample], probed: ProbedSwitches | None
) -> tuple[float | None, float | None]:
    """Voluntary and involuntary switches a second of all threads."""
    per_s = SECOND_NS / (newer.t_ns - older.t_ns)
    counted = [(thread.vol, thread.invol) for thread in threads if thread.vol is not None and thread.invol is not None]
    uncounted = any(thread.vol is None and thread.timeslices > 0 for thread in threads)
    if newer.unfollowed or uncounted or (newer.num_threads > 1 and not counted):
        return probed.per_s(newer.pid) if probed is not None else (None, None)
    if counted:
        return sum(vol for vol, _ in counted) * per_s, sum(invol for _, invol in counted) * per_s
    return _times(delta(older.vol, newer.vol), per_s), _times(delta(older.invol, newer.invol), per_s)



def _share_pct(part_ns: int | None, ns: int) -> float | None:
    return None if part_ns is None else 100 * part_ns / ns


def _times(value: int | None, factor: float) -> float | None:
    return None if value is None else value * factor
