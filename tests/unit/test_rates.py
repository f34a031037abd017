"""Rates from pairs of readings made by hand."""

from __future__ import annotations

import msgspec
import pytest

from gputop.model import rates
from gputop.model.board import Board
from gputop.model.frame import CgroupSample, CpuSample, DiskSample, NetSample, ProcSample, SchedThread, ThreadSample

MS = 1_000_000
SECOND = 1_000_000_000


def sample(t_s: float, **fields: object) -> ProcSample:
    facts: dict = {"start_ticks": 7, "state": "S", "utime_ns": 0, "stime_ns": 0, "rss_bytes": 0, "num_threads": 1} | fields
    return ProcSample(pid=10, t_ns=round(t_s * SECOND), **facts)


def test_rates_of_a_single_threaded_process():
    older = sample(
        1, utime_ns=100 * MS, stime_ns=0, oncpu_ns=100 * MS, run_delay_ns=0, vol=10, invol=1, read_bytes=0, write_bytes=9
    )
    newer = sample(3, utime_ns=600 * MS, stime_ns=200 * MS, oncpu_ns=800 * MS, run_delay_ns=500 * MS, vol=30, invol=11,
                   read_bytes=4_000_000, write_bytes=9)  # fmt: skip
    found = rates.proc_rates(older, newer)
    assert found is not None
    assert (found.cpu_pct, found.system_pct) == (35, 10)
    assert found.runq_pct == 25
    assert (found.switches_per_s, found.invol_per_s) == (15, 5)
    assert (found.read_bytes_per_s, found.write_bytes_per_s) == (2_000_000, 0)
    assert found.blkio_pct is None


def test_threads_are_summed():
    older = sample(1, num_threads=2, threads=[ThreadSample(10, 0, 0, 0, "R", 0, 0), ThreadSample(11, 50 * MS, 100 * MS, 0, "R", 5, 5)])
    newer = sample(
        2, num_threads=2, threads=[ThreadSample(10, 900 * MS, 0, 0, "R", 1, 2), ThreadSample(11, 650 * MS, 400 * MS, 0, "R", 8, 9)]
    )
    found = rates.proc_rates(older, newer)
    assert found is not None
    assert found.cpu_pct == pytest.approx(150)
    assert found.switches_per_s == 1 + 2 + 3 + 4


def test_threads_that_were_not_all_read_leave_the_ticks():
    older = sample(1, num_threads=3, threads=[ThreadSample(10, 0, 0, 0)])
    newer = sample(2, num_threads=3, utime_ns=1200 * MS, threads=[ThreadSample(10, 100 * MS, 0, 0)])
    found = rates.proc_rates(older, newer)
    assert found is not None
    assert found.cpu_pct == 120


def test_what_threads_took_that_have_ended_counts():
    older = sample(1, utime_ns=5_000 * MS, oncpu_ns=400 * MS, threads=[ThreadSample(10, 400 * MS, 0, 0)])
    newer = sample(2, utime_ns=5_200 * MS, stime_ns=50 * MS, oncpu_ns=403 * MS, threads=[ThreadSample(10, 403 * MS, 0, 0)])
    for threads in (True, False):
        pair = [one if threads else msgspec.structs.replace(one, threads=[]) for one in (older, newer)]
        found = rates.proc_rates(*pair)
        assert found is not None
        assert found.cpu_pct == 25


def test_nanoseconds_count_where_ticks_lag_behind_them():
    found = rates.proc_rates(sample(1, utime_ns=90 * MS, oncpu_ns=99 * MS), sample(1.1, utime_ns=100 * MS, oncpu_ns=103 * MS))
    assert found is not None
    assert found.cpu_pct == pytest.approx(4)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (sample(1), sample(1)),
        (sample(2), sample(1)),
        (sample(1), sample(2, start_ticks=8)),
        (sample(1, utime_ns=10 * MS), sample(2)),
    ],
    ids=["no time", "backwards", "pid reused", "counter reset"],
)
def test_no_pair(older: ProcSample, newer: ProcSample):
    assert rates.proc_rates(older, newer) is None


def test_what_was_not_read_is_none_and_not_zero():
    found = rates.proc_rates(sample(1), sample(2))
    assert found is not None
    absent = ("runq_pct", "switches_per_s", "invol_per_s", "read_bytes_per_s", "write_bytes_per_s", "blkio_pct")
    assert [getattr(found, name) for name in absent] == [None] * len(absent)


def test_a_counter_that_went_back_is_absent_alone():
    found = rates.proc_rates(sample(1, read_bytes=10, vol=5, invol=5), sample(2, read_bytes=3, vol=6, invol=5))
    assert found is not None
    assert found.read_bytes_per_s is None
    assert found.switches_per_s == 1


def test_threads_born_between_count_from_zero():
    older = sample(1, num_threads=1, threads=[ThreadSample(1, 5, 5, 1)])
    newer = sample(2, num_threads=2, threads=[ThreadSample(1, 7, 6, 2), ThreadSample(2, 4, 3, 1)])
    [first, born] = rates.thread_deltas(older, newer)
    assert (first.oncpu_ns, first.run_delay_ns) == (2, 1)
    assert (born.oncpu_ns, born.run_delay_ns) == (4, 3)
    assert rates.thread_deltas(sample(1), newer) == []


def test_a_resting_thread_that_only_the_newer_sample_has_brings_nothing_of_its_life():
    older = sample(1, num_threads=3, threads=[ThreadSample(10, 0, 0, 1, "R", 0, 0)])
    newer = sample(2, num_threads=3, utime_ns=100 * MS, threads=[
        ThreadSample(10, 100 * MS, 0, 5, "R", 1, 1), ThreadSample(11, 90 * SECOND, 50 * SECOND, 9, "S", 9_000, 900),
        ThreadSample(12, 80 * SECOND, SECOND, 9, "S", 9_000, 900),
    ])  # fmt: skip
    found = rates.proc_rates(older, newer)
    assert found is not None
    assert (found.cpu_pct, found.switches_per_s) == (10, 2)


def _many(t_s: float, counted: int, **fields: object) -> ProcSample:
    return sample(t_s, num_threads=90, threads=[ThreadSample(10, 0, 0, 1, "R", counted, counted)], **fields)


def test_switches_of_more_threads_than_are_followed_are_those_that_the_probe_counts():
    older, newer = _many(1, 0), _many(2, 5, unfollowed=25)
    none = rates.proc_rates(older, newer)
    assert none is not None
    assert (none.switches_per_s, none.invol_per_s) == (None, None)
    before = {10: SchedThread(10, 10, 0, 0, 0, 0, 0, 100, 10, 0, start_ns=3), 99: SchedThread(99, 99, 0, 0, 0, 0, 0, 7, 7, 0)}
    after = {
        10: SchedThread(10, 10, 0, 0, 0, 0, 0, 300, 50, 0, start_ns=3), 99: SchedThread(99, 99, 0, 0, 0, 0, 0, 70, 70, 0),
        11: SchedThread(11, 10, 0, 0, 0, 0, 0, 9_000, 9_000, 0, start_ns=SECOND),
        12: SchedThread(12, 10, 0, 0, 0, 0, 0, 40, 4, 0, start_ns=3 * SECOND),
    }  # fmt: skip
    between = Board(threads=before, probed_ns=2 * SECOND), Board(threads=after, probed_ns=4 * SECOND)
    found = rates.proc_rates(older, newer, rates.ProbedSwitches(*between))
    assert found is not None
    assert (found.switches_per_s, found.invol_per_s) == ((200 + 40 + 40 + 4) / 2, (40 + 4) / 2)


def test_switches_of_a_bystander_are_all_its_threads_or_none():
    older, newer = sample(1, num_threads=9, vol=5, invol=5), sample(2, num_threads=9, vol=6, invol=5)
    idle = SchedThread(10, 10, 0, 0, 0, 0, 0, 7, 7, 0)
    before, after = {10: idle}, {10: idle, 11: SchedThread(11, 10, 0, 0, 0, 0, 0, 600, 60, 0, start_ns=3 * SECOND)}
    told = {}
    for seconds in (0, 0.5, 2):
        between = Board(threads=before, probed_ns=2 * SECOND), Board(threads=after, probed_ns=int((2 + seconds) * SECOND))
        found = rates.proc_rates(older, newer, rates.ProbedSwitches(*between))
        assert found is not None
        told[seconds] = found.switches_per_s, found.invol_per_s
    assert told == {0: (None, None), 0.5: (None, None), 2: (330, 30)}, "most threads are told of once a second"
    alone = rates.proc_rates(sample(1, vol=5, invol=5), sample(2, vol=6, invol=5), rates.ProbedSwitches(*between))
    assert alone is not None
    assert alone.switches_per_s == 1


def test_a_thread_that_ran_and_was_not_asked_leaves_no_sum():
    older = sample(1, num_threads=2, threads=[ThreadSample(10, 0, 0, 0, "R", 0, 0), ThreadSample(11, 0, 0, 1)])
    newer = sample(2, num_threads=2, threads=[ThreadSample(10, 1, 0, 2, "R", 2, 0), ThreadSample(11, 9, 0, 7)])
    found = rates.proc_rates(older, newer)
    assert found is not None
    assert found.switches_per_s is None


def test_power_and_counters():
    assert rates.power_w(1_000, 701_000, SECOND) == 700
    assert rates.power_w(2, 1, SECOND) is None
    assert rates.power_w(None, 1, SECOND) is None
    assert rates.counter_per_s(10, 30, 2 * SECOND) == 10
    assert rates.counter_per_s(10, 30, 0) is None


def test_only_cpus_that_were_there_both_times_and_advanced_count():
    older = [CpuSample(0, 0, 0, 0, 0, 0, 0), CpuSample(1, 0, 0, 0, 0, 0, 0), CpuSample(2, 9, 0, 0, 0, 0, 0)]
    newer = [
        CpuSample(0, 30, 10, 50, 10, 0, 0),
        CpuSample(1, 0, 0, 0, 0, 0, 0),
        CpuSample(2, 1, 0, 8, 0, 0, 0),
        CpuSample(3, 1, 1, 1, 1, 1, 1),
    ]
    assert rates.cpu_deltas(older, newer) == {0: (40, 60)}


def test_what_the_hypervisor_took_is_told_apart():
    older, newer = [CpuSample(0, 0, 0, 0, 0, 0, 10)], [CpuSample(0, 20, 0, 40, 10, 0, 40), CpuSample(1, 1, 1, 1, 1, 1, 1)]
    deltas = rates.cpu_deltas(older, newer)
    assert deltas == {0: (50, 50)}
    assert rates.stolen_shares(older, newer, deltas) == {0: 0.3}


def test_bytes_by_the_counter_or_as_the_driver_tells():
    assert rates.bytes_per_s(100, 300, 2 * SECOND, 7.0) == 100
    assert rates.bytes_per_s(None, None, 2 * SECOND, 7.0) == 7
    assert rates.bytes_per_s(300, 100, SECOND, None) is None


def test_disks_networks_cgroups():
    older = DiskSample("sda", 0, 0, 0, 0, 0, 0, 0)
    newer = msgspec.structs.replace(older, reads=10, read_bytes=1000, io_ms=400)
    disk = rates.disk_rates(older, newer, SECOND)
    assert disk is not None
    assert (disk.read_bytes_per_s, disk.busy_pct) == (1000, 40)
    assert rates.disk_rates(newer, older, SECOND) is None
    assert rates.net_rates(NetSample("eth0", 0, 0, 0, 0), NetSample("eth0", 100, 50, 0, 0), SECOND) == (100, 50)
    assert rates.net_rates(NetSample("eth0", 5, 0, 0, 0), NetSample("eth0", 1, 0, 0, 0), SECOND) is None
    group = CgroupSample("/a", 2, 1.0, nr_periods=0, nr_throttled=0)
    later = msgspec.structs.replace(group, nr_periods=10, nr_throttled=4)
    assert rates.throttled_periods_pct(group, later) == 40
    assert rates.throttled_periods_pct(group, group) is None


@pytest.mark.parametrize(("older", "newer", "grown"), [(3, 5, 2), (5, 5, 0), (0, 4, 4), (9, 4, 4)])
def test_a_pair_that_was_forgotten_begins_anew(older: int, newer: int, grown: int):
    assert rates.pair_growth(older, newer) == grown


def test_of_a_second_ago_a_process_of_one_thread_is_kept_without_what_the_probe_tells_of_it():
    board = Board()
    for pid, facts in ((7, {"vol": 3}), (8, {"vol": 3, "num_threads": 2}), (9, {})):
        board.procs[pid] = msgspec.structs.replace(sample(1, **facts), pid=pid)
    for tid, pid in ((6, 6), (7, 7), (8, 8), (80, 8), (9, 9)):
        board.threads[tid] = SchedThread(tid, pid, 0, 0, 0, 0, 0, 1, 1, 0)
    assert board.counters().threads.keys() == {6, 8, 80, 9}, "of 6 nothing else is known, and 9 is told of by the probe alone"
