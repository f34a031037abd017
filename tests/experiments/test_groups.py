"""Which control group divides CPU time between a job and a culprit, on a made host with the unified hierarchy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputop.prove.groups import Between, Groups, is_apart, members

JOB, LOGS, CRON, SHELL = 100, 200, 300, 400
PATHS = {JOB: "/user.slice/job.scope", LOGS: "/system.slice/logs.service", CRON: "/system.slice/cron.service", SHELL: "/user.slice"}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    for pid, path in PATHS.items():
        (tmp_path / f"proc/{pid}").mkdir()
        (tmp_path / f"proc/{pid}/cgroup").write_text(f"0::{path}\n")
        group = tmp_path / f"sys/fs/cgroup{path}"
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.procs").write_text(f"{pid}\n")
        (group / "cgroup.controllers").touch()
    for above in ("", "system.slice"):
        (tmp_path / "sys/fs/cgroup" / above / "cgroup.procs").write_text("")
    return tmp_path


def _between(host: Path, pid: int, *pids: int) -> Between | None:
    groups = Groups(str(host))
    one, job = groups.place(pid, "cpu"), groups.place(JOB, "cpu")
    assert one is not None
    assert job is not None
    return groups.between(pids, one, job) if is_apart(one, job) else None


def test_a_service_beside_others_is_no_neighbour(host: Path) -> None:
    assert _between(host, LOGS, LOGS) == Between(str(host / "sys/fs/cgroup/system.slice/logs.service"), is_neighbour=False)


def test_all_of_a_slice_are_a_neighbour(host: Path) -> None:
    assert _between(host, LOGS, LOGS, CRON) == Between(str(host / "sys/fs/cgroup/system.slice"), is_neighbour=True)


def test_a_group_that_others_are_in(host: Path) -> None:
    (host / "sys/fs/cgroup/system.slice/logs.service/cgroup.procs").write_text(f"{LOGS}\n999\n")
    assert _between(host, LOGS, LOGS) is None


def test_above_the_job_priorities_count(host: Path) -> None:
    assert _between(host, SHELL, SHELL) is None
    groups = Groups(str(host))
    assert not is_apart(groups.place(SHELL, "cpu"), groups.place(JOB, "cpu"))


def test_members_are_counted_below_too(host: Path) -> None:
    assert members(str(host / "sys/fs/cgroup/system.slice")) == {LOGS, CRON}
    assert members(str(host / "sys/fs/cgroup/nowhere")) == set()


def test_what_is_not_mounted_has_no_place(host: Path) -> None:
    (host / "proc/self/mountinfo").write_text("")
    assert Groups(str(host)).place(JOB, "cpu") is None
