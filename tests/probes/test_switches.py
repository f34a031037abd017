"""Where switches are very many, the scheduler's programs are attached for a part of the time, on the real kernel."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable

import pytest

from gputop.sources import Settings
from gputop.sources.ebpf import uprobe
from tests.probes.conftest import LIFE_S, Beaten, attached_by_helper
from tests.probes.test_sched import CPU, counts, kernel_says, tell, wait_line

Run = Callable[..., subprocess.Popen[str]]
Make = Callable[..., Beaten]


def sampled(one: Beaten) -> bool:
    return one.board.switch_share < 1.0


def storm(run: Run) -> list[int]:
    """Two processes that wake one another; their pids."""
    load = run("pingpong", LIFE_S, CPU)
    pids: list[int] = json.loads(wait_line(load))
    tell(load)
    return pids


def over(load: subprocess.Popen[str]) -> None:
    """End a storm, which has begun."""
    tell(load)
    assert wait_line(load) == "done"


def wakes_of(one: Beaten, tid: int) -> int:
    return sum(wake.times for wake in one.board.wakeups.values() if wake.wakee_tid == tid)


def test_a_calm_job_is_counted_all_the_time(beaten: Make, run: Run) -> None:
    load = run("doze", LIFE_S, CPU)
    wait_line(load)
    one = beaten()
    one.hot = frozenset({load.pid})
    one.until_loaded()
    one.beat_for(3)
    # Other programs' storms pass.
    one.until(lambda: {frame.probes.share for frame in one.frames[-50:] if frame.probes} == {1.0}, "2.5 s without a window")
    assert "switches" not in one.states[-1].detail


@pytest.mark.soak
def test_a_storm_is_counted_in_a_share_and_estimated(beaten: Make, run: Run) -> None:
    one = beaten()
    one.until_loaded()
    pids = storm(run)
    one.hot = frozenset(pids)
    one.until(lambda: sampled(one), "sampled")
    assert "of the time" in one.states[-1].detail["switches"]
    one.until(lambda: one.source._probes.switches.watch.seen.number >= 2, "two windows")  # type: ignore[union-attr]
    one.until(lambda: one.frames[-1].probes, "read")
    began_s, first = time.monotonic(), {pid: (kernel_says(pid), one.board.threads[pid], wakes_of(one, pid)) for pid in pids}
    one.beat_for(6)

    def check() -> None:
        for pid in pids:
            kernel_before, before, woken = first[pid]
            kernel, now = kernel_says(pid), one.board.threads[pid]
            oncpu, delay, vol, invol = (new - old for new, old in zip(kernel, kernel_before, strict=True))
            ours = [new - old for new, old in zip(counts(now), counts(before), strict=True)]
            assert ours[0] == pytest.approx(oncpu, rel=0.05), "on-CPU time is the kernel's"
            assert ours[1] == pytest.approx(delay, rel=0.1, abs=50_000_000), "and so is run delay"
            assert ours[2] + ours[3] == pytest.approx(vol + invol, rel=0.1), "switches follow the kernel's count"
            assert ours[2] == pytest.approx(vol, rel=0.4), "neighbours decide how many of them are voluntary, and change"
            assert wakes_of(one, pid) - woken == pytest.approx(vol, rel=0.4)
            assert sum(now.hist.values()) - sum(before.hist.values()) == pytest.approx(vol + invol, rel=0.25)
            assert now.sleeping_ns - before.sleeping_ns <= 1.25e9 * (time.monotonic() - began_s)

    one.until_it_holds(check)
    assert 0.0 < one.board.switch_share < 0.8


@pytest.mark.soak
def test_it_comes_back_when_the_storm_is_over_and_sums_never_fall(beaten: Make, run: Run) -> None:
    one = beaten()
    one.until_loaded()
    calm = run("doze", LIFE_S, CPU)
    wait_line(calm)
    load = run("pingpong", LIFE_S, CPU)
    pids = json.loads(wait_line(load))
    one.hot = frozenset({*pids, calm.pid})
    tell(load)
    one.until(lambda: sampled(one), "sampled")
    over(load)
    one.until(lambda: not sampled(one), "counted all the time again")
    assert "switches" not in one.states[-1].detail
    before = wakes_of(one, calm.pid), kernel_says(calm.pid)[2]
    one.beat_for(1.5)
    assert wakes_of(one, calm.pid) - before[0] == pytest.approx(kernel_says(calm.pid)[2] - before[1], rel=0.3)
    told: dict[int, tuple[int, ...]] = {}
    for frame in one.frames:
        for thread in frame.probes.threads if frame.probes and frame.probes.t_ns else []:
            sums = (thread.oncpu_ns, thread.runnable_ns, thread.preempted_ns, thread.vol, thread.invol)
            if thread.tid in one.hot:
                assert all(new >= old for new, old in zip(sums, told.get(thread.tid, sums), strict=True)), thread
                told[thread.tid] = sums


@pytest.mark.soak
def test_a_storm_of_strangers_is_noticed_and_a_calm_job_beside_it_is_estimated(beaten: Make, run: Run) -> None:
    """They switch on the job's CPU: each switch costs the job, too."""
    calm = run("doze", LIFE_S, CPU, 2)
    wait_line(calm)
    one = beaten()
    one.hot = frozenset({calm.pid})
    one.until_loaded()
    storm(run)
    one.until(lambda: sampled(one), "sampled")
    one.until(lambda: one.frames[-1].probes, "read")
    before = wakes_of(one, calm.pid), kernel_says(calm.pid)[2]
    one.beat_for(6)

    def check() -> None:
        after = wakes_of(one, calm.pid), kernel_says(calm.pid)[2]
        assert after[0] - before[0] == pytest.approx(after[1] - before[1], rel=0.3)

    one.until_it_holds(check)


@pytest.mark.soak
def test_who_ends_unseen_is_told_gone(beaten: Make, run: Run) -> None:
    one = beaten()
    one.until_loaded()
    pids = storm(run)
    short = run("doze", LIFE_S, CPU)
    wait_line(short)
    one.hot = frozenset({*pids, short.pid})
    one.until(lambda: sampled(one) and short.pid in one.board.threads, "sampled")
    one.until(lambda: one.source._probes.switches.watch.seen.closed_ns, "detached")  # type: ignore[union-attr]
    short.kill()
    short.wait()
    one.until(lambda: short.pid not in one.board.threads, "told gone")


def test_programs_that_could_not_be_attached_again_stay_attached(beaten: Make, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[int]:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(uprobe, "attach_tracepoints", refuse)
    one = beaten()
    one.until_loaded()
    pids = storm(run)
    one.hot = frozenset(pids)
    one.until(lambda: "switches" in one.states[-1].detail, "said")
    assert one.states[-1].detail["switches"] == "counted without a budget: Operation not permitted"
    before = one.board.threads[pids[0]].vol
    one.until(lambda: one.board.threads[pids[0]].vol - before > 1000, "counted on")
    assert one.board.switch_share == 1.0


@pytest.mark.soak
def test_programs_that_cannot_be_attached_for_a_while_are_attached_later(
    beaten: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, may_attach = uprobe.attach_tracepoints, [True]

    def sometimes(programs: dict[str, int], raw: bool) -> list[int]:
        if may_attach:
            return attach(programs, raw)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(uprobe, "attach_tracepoints", sometimes)
    one = beaten()
    one.until_loaded()
    one.hot = frozenset(storm(run))
    one.until(lambda: sampled(one), "sampled")
    may_attach.clear()
    one.until(lambda: one.states[-1].detail.get("switches") == "not counted: Too many open files", "said")
    may_attach.append(True)
    one.until(lambda: "of the time" in one.states[-1].detail.get("switches", ""), "counted again")


@pytest.mark.soak
def test_without_privilege_a_helper_attaches_for_every_window(beaten: Make, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers = attached_by_helper(monkeypatch, "attach_tracepoints")
    one = beaten(settings=Settings(sudo=True))
    one.until_loaded()
    one.hot = frozenset(storm(run))
    one.until(lambda: one.source._probes.switches.watch.seen.number >= 2, "two windows")  # type: ignore[union-attr]
    assert sampled(one)
    assert len(helpers) == 1
    one.source.close()
    one.until(lambda: helpers[0]._reap(os.WNOHANG) or helpers[0]._status is not None, "the helper ended")


@pytest.mark.soak
def test_a_second_storm_is_counted_once(beaten: Make, run: Run) -> None:
    """Between two storms all is counted, and estimates of the first stand."""
    one = beaten()
    one.until_loaded()
    calm = run("doze", LIFE_S, CPU, 2)
    wait_line(calm)
    one.hot = frozenset({calm.pid})
    one.beat_for(0.5)
    before = wakes_of(one, calm.pid), kernel_says(calm.pid)[2]
    for _ in range(2):
        load = run("pingpong", LIFE_S, CPU)
        wait_line(load)
        tell(load)
        one.until(lambda: sampled(one), "sampled")
        over(load)
        one.until(lambda: not sampled(one), "counted all the time again")
    one.beat_for(0.5)
    assert wakes_of(one, calm.pid) - before[0] == pytest.approx(kernel_says(calm.pid)[2] - before[1], rel=0.3)
