"""The scheduler probe on the real kernel, against schedstat, status and workloads whose truth is known."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import pytest

from gputop.model import histogram
from gputop.model.frame import SchedThread, Wakeup
from gputop.model.syscalls import syscall_names
from gputop.sources import FEW, Settings
from gputop.sources.ebpf import sched
from gputop.sources.ebpf.maps import Map, Shape
from tests.probes.conftest import LIFE_S, Beaten

Run = Callable[..., subprocess.Popen[str]]
Make = Callable[..., Beaten]
CPU = max(os.sched_getaffinity(0))
TIMES = 60  # waits of a workload of known waits


def wait_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def watching(beaten: Make, *loads: subprocess.Popen[str]) -> Beaten:
    """A collector whose probes follow loads closely that have not begun."""
    one = beaten()
    one.hot = frozenset(load.pid for load in loads)
    one.until_loaded()
    one.beat_for(0.3)
    return one


def through(load: subprocess.Popen[str]) -> None:
    """Let a load wait its times."""
    tell(load)
    assert wait_line(load) == "done"


def watched(beaten: Make, load: subprocess.Popen[str]) -> Beaten:
    """A collector whose probes followed a load closely from its first wait to its last."""
    one = watching(beaten, load)
    through(load)
    return one


def kernel_says(tid: int) -> tuple[int, int, int, int]:
    """On-CPU ns and run delay ns (schedstat), voluntary and involuntary switches (status)."""
    with open(f"/proc/{tid}/schedstat", encoding="ascii") as file:
        oncpu, delay, _ = map(int, file.read().split())
    with open(f"/proc/{tid}/status", encoding="ascii") as file:
        switches = [int(line.split()[1]) for line in file if "ctxt_switches" in line]
    return oncpu, delay, switches[0], switches[1]


def wakes(one: Beaten, wakee: int, waker: int | None = None) -> list[Wakeup]:
    return [w for w in one.board.wakeups.values() if w.wakee_tid == wakee and waker in (None, w.waker_tid)]


def counts(thread: SchedThread) -> tuple[int, int, int, int]:
    return thread.oncpu_ns, thread.runnable_ns, thread.vol, thread.invol


class Window:
    """What the kernel and the probe say of some threads between two moments.

    Reading takes time on a busy machine, so the kernel is asked before and after: the probe must lie between, but for ``slack``.
    """

    def __init__(self, one: Beaten, tids: list[int]) -> None:
        self._one, self._tids = one, tids
        self._begin = self._moment()

    def end(self) -> dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
        """tid -> (at least, what the probe says, at most), each as the four counts."""
        before, ours, after = self._moment()
        first_before, first, first_after = self._begin
        return {
            tid: (
                tuple(b - a for a, b in zip(first_after[tid], before[tid], strict=True)),
                tuple(b - a for a, b in zip(first[tid], ours[tid], strict=True)),
                tuple(b - a for a, b in zip(first_before[tid], after[tid], strict=True)),
            )
            for tid in self._tids
        }

    def _moment(self) -> tuple[dict[int, tuple[int, ...]], ...]:
        before = {tid: kernel_says(tid) for tid in self._tids}
        self._one.tick()
        return before, {tid: counts(self._one.board.threads[tid]) for tid in self._tids}, {tid: kernel_says(tid) for tid in self._tids}


def test_times_and_switches_are_the_kernels_under_contention(beaten: Make, run: Run) -> None:
    loads = [run("burn", LIFE_S, CPU), run("burn", LIFE_S, CPU), run("doze", LIFE_S, CPU)]
    tids = [load.pid for load in loads]
    for load in loads:
        wait_line(load)
    one = beaten()
    one.hot = frozenset(tids)
    one.until_loaded()
    one.until(lambda: all(tid in one.board.threads and sum(counts(one.board.threads[tid])[2:]) > 5 for tid in tids), "all seen")
    window = Window(one, tids)
    taken, waited = dict(one.taken_ns), {tid: one.board.threads[tid].preempted_ns for tid in tids}
    one.beat_for(5)
    for tid, (least, ours, most) in window.end().items():
        longest_wait = max(t.max_run_delay_ns for f in one.frames if f.probes for t in f.probes.threads if t.tid == tid)
        tick = 20_000_000  # ns on a CPU that the kernel may have counted already, and nobody has switched yet
        slack = 0.01 * most[0] + tick, 0.01 * most[1] + longest_wait, 0.005 * most[2] + 2, 0.005 * most[3] + 2
        for name, low, value, high, more in zip(("on-CPU", "run delay", "vol", "invol"), least, ours, most, slack, strict=True):
            assert low - more <= value <= high + more, f"{name} of {tid}"
        preempted = one.board.threads[tid].preempted_ns - waited[tid]
        if preempted > 500_000_000:
            assert one.taken_ns[tid] - taken.get(tid, 0) == pytest.approx(preempted, rel=0.05, abs=2 * longest_wait)


def test_who_burns_on_the_same_cpu_took_it(beaten: Make, run: Run) -> None:
    loads = [run("burn", LIFE_S, CPU) for _ in range(3)]
    for load in loads:
        wait_line(load)
    one = beaten()
    one.hot = frozenset({loads[0].pid})
    one.until_loaded()
    victim = loads[0].pid
    for culprit in loads[1:]:
        pair = victim, culprit.pid
        one.until(lambda p=pair: p in one.board.preempts and one.board.preempts[p].ns > 200_000_000, "took its share")
    assert all(pair[0] == victim for pair in one.board.preempts), "only hot victims are followed"
    assert one.board.preempts[victim, loads[1].pid].culprit_pid == loads[1].pid


def at_rest(one: Beaten, load: subprocess.Popen[str]) -> SchedThread:
    """What is said of a stopped thread: a reader may be kept from the CPU between its switches and its histogram, which then differ."""
    load.send_signal(signal.SIGSTOP)
    one.until(lambda: one.board.threads[load.pid].state == "sleeping", "stopped")
    return one.board.threads[load.pid]


def test_histogram_counts_each_wait_and_the_longest_is_exact(beaten: Make, run: Run) -> None:
    loads = [run("burn", LIFE_S, CPU), run("burn", LIFE_S, CPU)]
    for load in loads:
        wait_line(load)
    one = beaten()
    one.hot = frozenset({loads[0].pid})
    one.until_loaded()
    one.until(lambda: (t := one.board.threads.get(loads[0].pid)) and t.hist, "seen, and followed closely")
    first = at_rest(one, loads[0])
    loads[0].send_signal(signal.SIGCONT)
    one.beat_for(2)
    thread = at_rest(one, loads[0])
    waits = sum(thread.hist.values()) - sum(first.hist.values())
    switches = thread.vol - first.vol, thread.invol - first.invol
    assert waits == pytest.approx(sum(switches), rel=0.03), switches
    longest = max(t.max_run_delay_ns for f in one.frames if f.probes for t in f.probes.threads if t.tid == thread.tid)
    ended = max(bucket for bucket in thread.hist)
    assert longest >= histogram.floor_ns(ended)


def test_the_longest_wait_of_who_is_told_of_once_a_second_is_of_all_that_time(beaten: Make, run: Run) -> None:
    loads = [run("burn", LIFE_S, CPU), run("doze", LIFE_S, CPU, 130)]
    for load in loads:
        wait_line(load)
    one, tid = beaten(), loads[1].pid
    one.hot = frozenset({os.getpid()})
    one.until_loaded()

    def told() -> list[SchedThread]:
        return [thread for frame in one.frames if frame.probes for thread in frame.probes.threads if thread.tid == tid]

    one.until(lambda: len(told()) >= 8, "told of again and again")
    for older, newer in zip(told()[1:], told()[2:], strict=False):
        waits = newer.invol + newer.vol - older.invol - older.vol
        assert not waits or newer.max_run_delay_ns >= (newer.runnable_ns - older.runnable_ns) / (waits + 1)


def test_every_wakeup_is_the_wakers(beaten: Make, run: Run) -> None:
    load = run("ping", 151)
    wakee, waker = json.loads(wait_line(load))
    one = watched(beaten, load)
    found = one.until(lambda: (found := wakes(one, wakee, waker)) and sum(w.times for w in found) >= 150 and found, "woken by its waker")
    assert 150 <= sum(w.times for w in found) <= 151, "the first wake-up may precede the probe's first sight of the sleeper"
    assert {w.waker_pid for w in found} == {load.pid}
    assert sum(w.wait_ns for w in found) >= 150 * 2_000_000


def test_a_timer_is_nobodys_wakeup(beaten: Make, run: Run) -> None:
    hog, sleeper = run("burn", LIFE_S, CPU), run("doze", LIFE_S, CPU)
    wait_line(hog)
    wait_line(sleeper)
    one = beaten()
    one.hot = frozenset({sleeper.pid})
    one.until_loaded()
    one.until(lambda: sum(w.times for w in wakes(one, sleeper.pid, 0)) > 100, "woken by the timer")
    assert sum(w.times for w in wakes(one, sleeper.pid) if w.waker_tid != 0) <= 2


WAITS = {  # workload -> (system calls on x86_64 and aarch64, kind, whether its waker is the second thread)
    "pipe": ({"read"}, "pipe", True), "unix": ({"recvfrom"}, "unix", True), "network": ({"recvfrom"}, "network", False),
    "poll": ({"poll", "ppoll"}, "pipe", True), "several": ({"poll", "ppoll"}, "several", True),
    "epoll": ({"epoll_wait", "epoll_pwait"}, "epoll", True), "eventfd": ({"read"}, "eventfd", True),
    "semaphore": ({"futex"}, "futex", True), "shared": ({"futex"}, "futex", True), "timer": ({"clock_nanosleep"}, "timer", False),
    "child": ({"wait4"}, "child", False),
}  # fmt: skip


def test_a_sleep_is_counted_by_its_call_and_what_that_waits_for(beaten: Make, run: Run) -> None:
    loads = {workload: run("waits", workload, TIMES) for workload in WAITS}
    threads = {workload: json.loads(wait_line(load)) for workload, load in loads.items()}
    one, names = watching(beaten, *loads.values()), syscall_names("")

    def found(workload: str) -> list[Wakeup]:
        (calls, kind, by_thread), (wakee, waker, address) = WAITS[workload], threads[workload]
        alike = [w for w in wakes(one, wakee) if names.get(w.call) in calls and w.kind == kind and (w.waker_tid == waker) == by_thread]
        return [w for w in alike if w.timed == (workload == "poll") and w.shared == (workload == "shared") and w.address == address]

    for workload, load in loads.items():
        through(load)
        one.until(lambda workload=workload: sum(w.times for w in found(workload)) >= TIMES - 3, f"{workload}: woken {TIMES} times")
        assert sum(w.times for w in found(workload)) <= TIMES, workload
        assert 0.003 * TIMES <= sum(w.wait_ns for w in found(workload)) / 1e9 <= 0.1 * TIMES, workload


def test_a_lock_is_woken_both_ways_at_one_address(beaten: Make, run: Run) -> None:
    load = run("lock", TIMES)
    first, second, address = json.loads(wait_line(load))
    one = watched(beaten, load)
    for wakee, waker in ((first, second), (second, first)):
        held = one.until(lambda a=wakee, b=waker: [w for w in wakes(one, a, b) if w.address == address], "woken by its holder")
        assert [w.kind for w in held] == ["futex"]
        assert held[0].times >= TIMES // 2
        assert held[0].wait_ns >= 0.002 * held[0].times * 1e9


def test_a_read_past_the_page_cache_waits_for_a_file_uninterruptibly(beaten: Make, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    path.write_bytes(os.urandom(8 << 20))
    os.sync()
    load = run("disk", path, TIMES)
    tid, _, _ = json.loads(wait_line(load))
    one = watched(beaten, load)

    def found() -> list[Wakeup]:
        return [w for w in wakes(one, tid) if w.kind == "file" and w.uninterruptible]

    one.until(lambda: sum(w.times for w in found()) >= TIMES * 0.8, f"waited for the disk: {wakes(one, tid)}")
    assert {syscall_names("")[w.call] for w in found()} <= {"preadv", "preadv2"}


@pytest.mark.soak
def test_a_thousand_short_lived_processes_are_all_counted(beaten: Make, run: Run) -> None:
    load = run("fork", 1000)
    wait_line(load)
    one = beaten()
    one.until_loaded()
    tell(load)
    done: list[str] = []
    threading.Thread(target=lambda: done.append(wait_line(load)), daemon=True).start()
    one.until(lambda: bool(done), "forked")

    def ended() -> list[SchedThread]:
        return [thread for thread in one.dead if thread.tid == thread.pid and thread.comm.startswith("python")]

    one.until(lambda: len(ended()) >= 1000, "a thousand counted")  # waitpid returns before the child has left its CPU
    born = ended()
    assert all(thread.oncpu_ns > 0 for thread in born)
    lost = next(f.probes.lost for f in reversed(one.frames) if f.probes and f.probes.map_used)
    assert not lost
    newest = born[-1].tid
    one.until(lambda: any(newest in f.probes.gone for f in one.frames if f.probes), "said to be gone")
    assert newest not in one.board.threads


def test_a_full_map_is_counted_not_silent(beaten: Make, run: Run) -> None:
    one = beaten(sizes={"THREADS": 64, "DEAD_THREADS": 16})
    one.until_loaded()
    crowd = run("threads", 300)
    wait_line(crowd)
    tell(crowd)
    one.until(lambda: any(f.probes and f.probes.lost.get("threads") for f in one.frames), "lost updates said")


def test_others_come_once_a_second_and_only_if_they_changed(beaten: Make, run: Run) -> None:
    load = run("doze", LIFE_S, CPU)
    wait_line(load)
    one = beaten()
    one.until_loaded()
    first = len(one.frames)
    while len(one.frames) - first < 40:
        one.tick()
        time.sleep(0.02)
    seen = sum(any(t.tid == load.pid for t in f.probes.threads) for f in one.frames[first:] if f.probes)
    assert 1 <= seen <= 10, "about one frame in ten: who comes and goes shifts the turns"
    asleep = one.board.threads.get(1)
    assert asleep is None or asleep.hist == {}


def test_every_thread_has_its_turn_where_maps_are_read_in_every_fifth_beat(beaten: Make, run: Run) -> None:
    one = beaten(settings=Settings(interval_ns=40_000_000))
    one.until_loaded()
    crowd = run("threads", 40)
    wait_line(crowd)
    tids = {int(name) for name in os.listdir(f"/proc/{crowd.pid}/task")}
    one.until(lambda: tids <= one.board.threads.keys(), "all of them seen")
    tell(crowd)


def test_a_crowd_is_read_half_as_often_and_still_whole(beaten: Make, run: Run) -> None:
    others = run("doze", LIFE_S, CPU)
    wait_line(others)
    one = beaten()
    one.until_loaded()
    one.hot = frozenset({os.getpid(), *range(4_000_000, 4_000_000 + FEW)})
    while len(one.frames) % 8:
        one.tick()
    first = len(one.frames)
    seen: list[SchedThread] = []

    def told() -> bool:
        seen.extend(thread for frame in one.frames[first:] if frame.probes for thread in frame.probes.threads if thread.tid == others.pid)
        return bool(seen)

    one.until(told, "those who are not hot come in turn")
    one.until(lambda: len(one.frames) >= first + 16, "some ticks")
    assert {frame.seq % 4 for frame in one.frames[first:] if frame.probes} == {0}


class CrowdedMap:
    """What `_Preempts` uses of a map with room for ten, with entries that the test gives it: pair -> (ns, times)."""

    def __init__(self, entries: dict[int, tuple[int, int]]) -> None:
        self.entries = entries
        self.shape = Shape(8, 24, 160)
        self.values = b""

    def read(self) -> int:
        self.values = b"".join(struct.pack("<QQII", ns, times, 7, 0) for ns, times in self.entries.values())
        return len(self.entries)

    def key_list(self, _count: int) -> list[int]:
        return list(self.entries)

    def words(self, _count: int) -> memoryview:
        return memoryview(self.values).cast("Q")

    def delete(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.entries.pop(key, None)


ALIVE = set(range(40))


def crowd_of(pairs: dict[int, tuple[int, int]], others: int) -> tuple[CrowdedMap, sched._Preempts]:
    """A map of these and of others that ran for 9 ms, and its reader."""
    table = CrowdedMap(pairs | {1 << 32 | 10 + i: (9_000_000, 1) for i in range(others)})
    return table, sched._Preempts(cast(Map, table))


def told(pairs: sched._Preempts, key: bool = False) -> set[tuple[int, int]]:
    return {(one.victim_tid, one.ns) for one in pairs.read(key)[0]}


def test_a_crowded_map_drops_small_sums_that_grow_no_more() -> None:
    rare, growing, large = 1 << 32 | 1, 1 << 32 | 2, 1 << 32 | 3
    table, pairs = crowd_of({rare: (200_000, 1), growing: (200_000, 1), large: (5_000_000, 3)}, others=8)
    pairs.read(False)
    pairs.prune(ALIVE)
    assert len(table.entries) == 11, "what is new may still grow"
    table.entries[growing] = (300_000, 2)
    pairs.read(False)
    assert pairs.prune(ALIVE) == [rare]
    assert rare not in table.entries
    assert growing in table.entries
    assert large in table.entries
    del table.entries[1 << 32 | 10]
    table.entries[rare] = (4_000, 1)
    assert told(pairs) == {(1, 4_000)}, "begun anew, and told where there is room again"


def test_of_a_crowded_map_the_smallest_that_grow_no_more_make_room() -> None:
    growing = 1 << 32 | 1
    table, pairs = crowd_of({growing: (2_000_000, 1)} | {1 << 32 | 30 + i: (5_000_000 + i, 1) for i in range(3)}, others=9)
    for times in 1, 2:
        table.entries[growing] = (2_000_000 * times, times)
        pairs.read(False)
        forgotten = pairs.prune(ALIVE)
    assert set(forgotten) == {1 << 32 | 30 + i for i in range(3)}, "to be said"
    assert len(table.entries) == 10
    assert growing in table.entries, "however small"
    assert not {1 << 32 | 30 + i for i in range(3)} & table.entries.keys()


def test_of_a_crowded_map_what_hardly_ran_is_told_when_it_has_or_when_there_is_room() -> None:
    little, other = 1 << 32 | 1, 1 << 32 | 2
    table, pairs = crowd_of({little: (20_000, 1), other: (20_000, 1)}, others=9)
    assert told(pairs) == {(10 + i, 9_000_000) for i in range(9)}
    table.entries[little] = (120_000, 2)
    assert told(pairs) == {(1, 120_000)}
    assert (2, 20_000) not in told(pairs, key=True)
    pairs.prune(ALIVE - {18})
    assert len(table.entries) == 10
    assert (2, 20_000) in told(pairs, key=True)


def test_pairs_of_the_dead_go_though_they_were_never_told() -> None:
    little = 2 << 32 | 39
    table, pairs = crowd_of({little: (20_000, 1)}, others=10)
    pairs.read(False)
    assert pairs.prune(ALIVE - {39}) == [], "whoever is gone takes them along"
    assert little not in table.entries
    assert len(table.entries) == 10
