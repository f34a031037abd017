"""The way to make a culprit yield is the one that the scheduler heeds between it and the job."""

from __future__ import annotations

import pytest

from gputop.diagnosis.facts.facts import Taker
from gputop.diagnosis.graph import shell
from gputop.model.frame import ProcInfo
from tests.unit.diagnosis.test_engine import contended


def command(theirs: tuple[str, int], mine: tuple[str, int], version: int = 2, autogroup: bool = True) -> str:
    """For processes in (cgroup, session)."""
    job = ProcInfo(100, 1, cgroup=mine[0], session=mine[1])
    taker = Taker(900, "hog", 1.0, info=ProcInfo(900, 1, cgroup=theirs[0], session=theirs[1]))
    return shell.fixes([taker], job, version, autogroup)[0].command


@pytest.mark.parametrize(
    ("theirs", "mine", "version", "expected"),
    [
        (("/job", 7), ("/job", 8), 2, "chrt --idle --all-tasks --pid 0 900"),
        (("/", 7), ("/", 7), 2, "chrt --idle --all-tasks --pid 0 900"),
        (("/", 7), ("/", 8), 2, "echo 19 > /proc/900/autogroup"),
        (("/", 7), ("/job", 7), 1, "echo 19 > /proc/900/autogroup"),
        (("/svc", 7), ("/job", 8), 1, "echo 2 > /sys/fs/cgroup/cpu/svc/cpu.shares"),
        (("/svc", 7), ("/job/inner", 8), 2, "echo 1 > /sys/fs/cgroup/svc/cpu.weight"),
        (("/svc", 7), ("/", 8), 2, "echo 1 > /sys/fs/cgroup/svc/cpu.weight"),
        (("/other/svc", 7), ("/job", 8), 2, "echo 20000 100000 > /sys/fs/cgroup/other/svc/cpu.max"),
        (("/other/svc", 7), ("/job", 8), 1, "echo 20000 > /sys/fs/cgroup/cpu/other/svc/cpu.cfs_quota_us"),
        (("/system.slice/db.service", 7), ("/system.slice/train.service", 8), 2, "systemctl set-property --runtime db.service CPUWeight=1"),
        (("/system.slice/db.service", 7), ("/user.slice/u", 8), 2, "systemctl set-property --runtime db.service CPUQuota=20%"),
        (("/a;reboot", 7), ("/job", 8), 2, "echo 1 > '/sys/fs/cgroup/a;reboot/cpu.weight'"),
        (("", 0), ("/job", 8), 2, "chrt --idle --all-tasks --pid 0 900"),
    ],
)
def test_command(theirs: tuple[str, int], mine: tuple[str, int], version: int, expected: str) -> None:
    assert command(theirs, mine, version) == expected


@pytest.mark.parametrize(
    ("theirs", "mine", "expected"),
    [
        (0, 1000, "sudo sh -c 'chrt --idle --all-tasks --pid 0 900'"), (1000, 1000, "chrt --idle --all-tasks --pid 0 900"),
        (1000, 0, "chrt --idle --all-tasks --pid 0 900"), (None, 1000, "chrt --idle --all-tasks --pid 0 900"),
    ],
)  # fmt: skip
def test_other_users_processes_need_root(theirs: int | None, mine: int, expected: str) -> None:
    job = ProcInfo(100, 1, uid=mine, cgroup="/", session=7)
    taker = Taker(900, "hog", 1.0, info=ProcInfo(900, 1, uid=theirs, cgroup="/", session=7))
    assert shell.fixes([taker], job, 2, True)[0].command == expected


def test_sessions_do_not_count_where_the_kernel_does_not_group_by_them() -> None:
    assert command(("/", 7), ("/", 8), autogroup=False) == "chrt --idle --all-tasks --pid 0 900"


def test_processes_are_told_together_where_they_yield_alike() -> None:
    def taker(pid: int, cgroup: str, name: str = "hog") -> Taker:
        return Taker(pid, name, 1.0, info=ProcInfo(pid, 1, cgroup=cgroup, session=7))

    takers = [taker(1, "/job"), taker(2, "/svc"), taker(3, "/job"), taker(4, "/job", "other")]
    fixes = shell.fixes(takers, ProcInfo(100, 1, cgroup="/job", session=7), 2, True)
    assert [fix.command for fix in fixes] == [
        "for pid in 1 3 4; do chrt --idle --all-tasks --pid 0 $pid; done",
        "echo 1 > /sys/fs/cgroup/svc/cpu.weight",
        "echo 1000 > /sys/fs/cgroup/job/cpu.weight",
    ]


@pytest.mark.parametrize(
    ("theirs", "mine", "version", "expected"),
    [
        ("/svc", "/job", 1, ["echo 10240 > /sys/fs/cgroup/cpu/job/cpu.shares"]),
        ("/a.slice/db.service", "/a.slice/train.service", 2, ["systemctl set-property --runtime train.service CPUWeight=1000"]),
        ("/svc", "/job/inner", 2, []), ("/svc", "/", 2, []),
    ],
)  # fmt: skip
def test_between_neighbours_the_jobs_own_weight_may_be_changed_instead(theirs: str, mine: str, version: int, expected: list[str]) -> None:
    taker = Taker(900, "hog", 1.0, info=ProcInfo(900, 1, cgroup=theirs))
    assert [fix.command for fix in shell.fixes([taker], ProcInfo(100, 1, cgroup=mine), version, True)[1:]] == expected


def test_processes_of_one_session_yield_by_one_command() -> None:
    takers = [Taker(pid, name, 1.0, info=ProcInfo(pid, 1, cgroup="/", session=7)) for pid, name in ((1, "tar"), (2, "gzip"))]
    [fix] = shell.fixes(takers, ProcInfo(100, 1, cgroup="/", session=8), 2, True)
    assert fix.command == "echo 19 > /proc/1/autogroup"
    assert "tar (1), gzip (2)" in fix.text


def test_sessions_yield_by_one_command() -> None:
    """What comes back is foretold for all of them: where one alone yields, the others take what it leaves."""
    sessions = ((1, "bowtie2", 7), (2, "bowtie2", 9), (3, "tar", 11), (4, "bowtie2", 9), (5, "sh", 12), (6, "bowtie2", 12))
    takers = [Taker(pid, name, 1.0, info=ProcInfo(pid, 1, cgroup="/", session=session)) for pid, name, session in sessions]
    [fix] = shell.fixes(takers, ProcInfo(100, 1, cgroup="/", session=8), 2, True)
    assert fix.command == "for pid in 1 2 3 5; do echo 19 > /proc/$pid/autogroup; done"
    assert "bowtie2 (1, 2, 4, 6), tar (3), sh (5)" in fix.text


def test_who_took_little_has_a_fix_of_its_own_behind_the_others() -> None:
    sizes = ((1, "find", 0.1), (2, "bwa", 0.9), (3, "pigz", 0.5), (4, "bwa", 0.2))
    takers = [Taker(pid, name, cores, info=ProcInfo(pid, 1, cgroup="/", session=pid)) for pid, name, cores in sizes]
    fixes = shell.fixes(takers, ProcInfo(100, 1, cgroup="/", session=8), 2, True)
    assert [fix.command for fix in fixes] == [
        "for pid in 2 3 4; do echo 19 > /proc/$pid/autogroup; done", "echo 19 > /proc/1/autogroup",
    ]  # fmt: skip


@pytest.mark.parametrize(("theirs", "then"), [(("/", 7), " && echo 19 > /proc/900/autogroup"), (("/", 8), ""), (("/theirs", 7), "")])
def test_no_weight_holds_who_runs_at_real_time_priority(theirs: tuple[str, int], then: str):
    """Once it does no more, its session's weight counts: the half of all CPU time."""
    taker = Taker(900, "ptp", 0.6, info=ProcInfo(900, 1, cgroup=theirs[0], session=theirs[1], policy=1))
    [fix] = shell.fixes([taker], ProcInfo(100, 1, cgroup="/", session=8), 2, True)
    assert fix.command == f"chrt --idle --all-tasks --pid 0 900{then}"
    assert "real-time priority" in fix.text


def test_a_thread_of_the_kernel_is_named_and_left_alone():
    scene = contended()
    scene.procs[900].ppid = 2
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "cpu-contention"
    assert {culprit.pid for culprit in verdict.culprits} == {900, 901}
    commands = " ".join(fix.command for fix in verdict.fixes)
    assert "901" in commands
    assert "900" not in commands


def test_a_worker_pinned_to_a_hogs_cpu_may_go_to_one_that_idles():
    scene = contended().drop(901)
    scene.cpu_busy = [1.0, 0.4]
    scene.procs[101].info["cpus_allowed"], scene.procs[102].info["cpus_allowed"] = "0", "1"
    scene.procs[102].wait, scene.procs[900].processor = 0.0, 0
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "cpu-contention"
    assert "taskset -apc 0-1 101" in [fix.command for fix in verdict.fixes]
    scene.cpu_busy = [1.0, 1.0]
    assert not [fix for fix in scene.play(6).engine.verdict.fixes if "taskset" in fix.command]


@pytest.mark.parametrize(
    ("wanted", "cpus", "parts"),
    [([4.0, 4.0], 4, [2, 2]), ([1.2, 9.0], 8, [2, 6]), ([2.0, 4.0], 4, [2, 2]), ([1.0, 1.0], 8, [4, 4]), ([5.0, 0.2, 5.0], 7, [3, 1, 3])],
)
def test_cpus_are_divided_so_that_nobody_has_more_than_it_wants_while_another_lacks_some(wanted: list[float], cpus: int, parts: list[int]):
    assert shell.divided(wanted, cpus) == parts
