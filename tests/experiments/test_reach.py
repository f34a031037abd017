"""Everybody whom a change reaches is named before, with user, CPU time and reason; others' processes need an answer, a demo leaves them."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from msgspec.structs import replace

from gputop.commands.prove import _agreed
from gputop.demo.stage import staged
from gputop.demo.work import WORKER_NAME
from gputop.prove import groups, reach
from gputop.prove.change import Case, Plan, Reached, Refusal, TargetProcess
from gputop.prove.groups import ReachUnknown, members
from gputop.prove.guardian import Guard
from gputop.prove.interventions import plan
from gputop.prove.permission import stage, why_off_stage
from gputop.prove.processes import read_process, read_processes
from gputop.sources import simulated
from gputop.system.errors import UserError
from gputop.tui.dashboard import send_signal
from tests.experiments.processes import ROOT, SLEEPS, case, running, settings, started, target
from tests.stranger import nobodys_process
from tests.wait import PATIENCE_S, until
from tests.workloads import cgroup

root = pytest.mark.skipif(os.geteuid() != 0, reason="not root")
SPINS = "print(flush=True)\nwhile True: pass"
STARTS = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {SLEEPS!r}])\np.wait()"  # the line is its child's


@pytest.fixture
def quota() -> Iterator[Path]:
    """A group with a quota of half a CPU, and one below it."""
    if why := cgroup.missing("cpu"):
        pytest.skip(why)
    with cgroup.group("cpu", "reach") as path:
        if cgroup.is_v2("cpu"):
            (path / "cgroup.subtree_control").write_text("+cpu")
        cgroup.limit_cpu(path, 0.5)
        below = path / "below"
        below.mkdir()
        try:
            yield path
        finally:
            cgroup.remove(below, path.parent)


def limit(path: Path) -> str:
    return (path / ("cpu.max" if cgroup.is_v2("cpu") else "cpu.cfs_quota_us")).read_text()


def throttled(trainer: TargetProcess) -> Case:
    return case(trainer, cause="cgroup-throttle")


def planned(one: Case) -> Plan:
    made = plan(one)
    assert isinstance(made, Plan), made
    return made


@contextmanager
def inside(*where: tuple[Path, TargetProcess]) -> Iterator[None]:
    for path, one in where:
        cgroup.add(path, [one.pid])
    yield


@root
@pytest.mark.parametrize("is_below", [False, True])
def test_members_of_a_changed_group_are_others_processes(quota: Path, is_below: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever's they are, and however deep: not only the job's."""
    with running() as trainer, running() as mine, nobodys_process() as pid:
        where = quota / "below" if is_below else quota
        with inside((quota / "below", trainer), (quota / "below", mine), (where, target(pid))):
            made = planned(throttled(trainer))
            assert [one.pid for one in made.others] == [pid]
            by_pid = {one.target.pid: one for one in made.reached}
            assert by_pid.keys() == {trainer.pid, mine.pid, pid}
            assert [one.is_other for one in made.reached] == [True, False, False]
            assert (by_pid[pid].user, by_pid[trainer.pid].is_job, by_pid[mine.pid].is_job) == ("nobody", True, False)
            assert all("of its cgroup" in one.reason for one in made.reached)
            assert reach.summed(made.reached) in (
                "3 processes change: 1 of nobody, 1 of root, 1 of the job", "3 processes change: 1 of nobody, 1 of the job, 1 of root",
            )  # fmt: skip
            monkeypatch.setattr(sys, "stdin", io.StringIO())
            with pytest.raises(UserError, match="--others"):
                _agreed(argparse.Namespace(yes=True, others=False), made)
            before = limit(quota)
            with pytest.raises(OSError, match="of another user"):
                Guard(made).__enter__()
            assert limit(quota) == before
            told = plan(throttled(trainer), allow_others=False)
            assert isinstance(told, Refusal)
            assert "belongs to another user" in told.reason


@root
def test_who_joins_after_the_question_is_not_changed(quota: Path) -> None:
    with running() as trainer, nobodys_process() as pid, inside((quota, trainer)):
        made, before = planned(throttled(trainer)), limit(quota)
        assert made.others == ()
        with Guard(made, agreed=True) as guard:
            guard.on()
            guard.off()
            cgroup.add(quota / "below", [pid])
            with pytest.raises(OSError, match=f"sleep .{pid}., which you were not asked about"):
                guard.on()
            assert limit(quota) == before
        assert limit(quota) == before


@root
def test_a_session_is_named_with_other_users_processes() -> None:
    if Path("/proc/sys/kernel/sched_autogroup_enabled").read_text() != "1\n":
        pytest.skip("this kernel has no autogroup")
    code = "import os, subprocess, sys, time\np = subprocess.Popen(['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups',"
    code += " 'sleep', '600'])\nprint(flush=True)\ntime.sleep(600)"
    with running() as trainer, started(code, own_session=True) as leader:
        until(lambda: [child.uids().real for child in psutil.Process(leader.pid).children()] == [65534])
        pid = psutil.Process(leader.pid).children()[0].pid
        made = planned(case(trainer, target(leader.pid)))
        if [change.setting for change in made.changes] != ["autogroup"]:
            pytest.skip("its session has no weight of its own here")
        assert [one.pid for one in made.others] == [pid]
        assert {one.target.pid for one in made.reached} == {leader.pid, pid}
        assert made.reached[0].reason == "the least weight for its session"


@root
def test_members_that_cannot_be_seen_are_told(quota: Path) -> None:
    """From another pid namespace the kernel writes 0 for them."""
    code = f"from gputop.prove.groups import ReachUnknown, members\ntry: print(members({str(quota)!r}))\nexcept ReachUnknown as e: print(e)"
    with running() as one, inside((quota / "below", one)):
        command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        if "unshare" in done.stderr:
            pytest.skip(done.stderr.strip())
        assert "cannot be seen from here" in done.stdout or "may have processes" in done.stdout, done.stderr
        assert members(str(quota)) == {one.pid}


def test_a_long_list_is_read_whole_and_one_that_is_too_long_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in range(100_000, 104_000)))
    assert members(str(tmp_path)) == set(range(100_000, 104_000))
    monkeypatch.setattr(groups, "MOST_MEMBERS", 3999)
    with pytest.raises(ReachUnknown, match="more than 3999"):
        members(str(tmp_path))
    (tmp_path / "below").mkdir()  # which tells no processes
    with pytest.raises(ReachUnknown):
        members(str(tmp_path))


def test_a_threaded_group_tells_threads(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "cgroup.threads").write_text(f"{os.getpid()}\n")
    assert members(str(tmp_path)) == {os.getpid()}


def test_each_is_listed_with_its_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds, by the clock that is given, in which one spins for half a second: how long that takes here does not count."""
    now_s = 0.0
    with running() as trainer, running(SPINS) as spinning, started(STARTS) as parent:
        child, spins = psutil.Process(parent.pid).children()[0].pid, psutil.Process(spinning.pid)

        def look(_seconds: float) -> None:
            nonlocal now_s
            begun_s, now_s = spins.cpu_times().user, now_s + 2.0
            until(lambda: spins.cpu_times().user >= begun_s + 0.5)

        monkeypatch.setattr(reach, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=look))
        made = planned(case(trainer, target(parent.pid), spinning))
        assert [one.target.pid for one in made.reached][:1] == [spinning.pid]
        by_pid = {one.target.pid: one for one in made.reached}
        assert by_pid.keys() >= {spinning.pid, parent.pid, child}
        assert (by_pid[spinning.pid].cpu or 0.0) >= 0.25
        assert made.others == ()
        assert reach.line(by_pid[child]).endswith(f"({child})  0 % CPU  {by_pid[child].reason}")


def test_of_who_ended_no_cpu_time_is_told() -> None:
    one = Reached(TargetProcess(7, 1, "it"), "bob", "nice 19", False, False, None)
    assert reach.line(one) == "bob  it (7)  CPU not measured  nice 19"
    assert reach.summed([one]) == "1 process changes: 1 of bob"


# in a demo


@contextmanager
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[TargetProcess]:
    """A worker of a real demo, which this process has started; so it has whatever else a test starts."""
    with staged("queue-full-healthy", 300.0) as environment:
        monkeypatch.setenv(simulated.VARIABLE, environment[simulated.VARIABLE])
        until(lambda: len(workers()) == 4)
        yield target(workers()[0])


def workers() -> list[int]:
    """Those of the demo."""
    table = read_processes()
    return sorted(pid for pid in stage(table) or () if pid in table and table[pid].comm == WORKER_NAME)


def test_a_demo_touches_its_own_processes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as trainer, running() as hog, demo(monkeypatch) as own:
        before = settings(hog.pid)
        told = plan(case(trainer, hog))
        assert isinstance(told, Refusal)
        assert f"{hog} is not the demo's: a demo touches its own processes alone" in told.reason
        made = planned(case(trainer, own, hog))
        assert own.pid in {one.target.pid for one in made.reached}
        assert {one.target.pid for one in made.reached} <= (stage() or set())
        with Guard(made) as guard:
            guard.on()
            assert settings(hog.pid) == before
        told = plan(case(hog, cause="affinity"))
        assert isinstance(told, Refusal)
        assert "is not the demo's" in told.reason
        for pid in (hog.pid, os.getpid(), read_process(read_process(own.pid).ppid).ppid):  # the latter is the stage
            assert f"{pid} is not the demo's" in send_signal("TERM", {pid: read_process(pid).start_ticks})
        assert read_process(hog.pid).state != "Z"
        assert send_signal("TERM", {own.pid: own.start_ticks}) == "SIGTERM sent to 1 of 1"


@root
def test_a_demo_changes_no_group_in_which_others_are(quota: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as hog, demo(monkeypatch) as own, inside((quota / "below", own)):
        before = limit(quota)
        assert {one.target.pid for one in planned(throttled(own)).reached} == {own.pid}
        cgroup.add(quota, [hog.pid])
        told = plan(throttled(own))
        assert isinstance(told, Refusal)
        assert f"{hog}, too, which is not the demo's" in told.reason
        assert limit(quota) == before


@pytest.mark.parametrize("path", ["/tmp/memory", "/proc/self/fd/3", "/proc/999999999/fd/3", "/proc/-1/fd/3", "/proc/1x/fd/3"])
def test_where_it_is_not_known_what_the_demos_are_none_is_touched(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(simulated.VARIABLE, path)
    assert stage() == frozenset()
    with running() as trainer, running() as hog:
        assert isinstance(plan(case(trainer, hog)), Refusal)


def test_without_a_demo_there_is_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(simulated.VARIABLE, raising=False)
    assert stage() is None
    assert why_off_stage(1, None) == ""


def test_the_guard_looks_again_in_a_demo(quota: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        hog = stack.enter_context(running())
        own = stack.enter_context(demo(monkeypatch))
        stack.enter_context(inside((quota, own)))
        made = replace(planned(throttled(own)), others=())
        with Guard(made) as guard:
            cgroup.add(quota / "below", [hog.pid])
            with pytest.raises(OSError, match="which you were not asked about"):
                guard.on()
