"""Which fixes `tests.experiments.fixes` makes, and what it calls what they bring."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gputop.findings.verdict import Fix, WhatIf
from tests.experiments.fixes import Outcome, Trial, promise
from tests.experiments.processes import running
from tests.require import require
from tests.workloads import pace, scenario, simgpu
from tests.workloads.advice import SHELL, ends_culprits, environment_of, is_own, targets
from tests.workloads.runner import Running
from tests.workloads.scenario import LOADER_VARIABLE


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ("export OMP_NUM_THREADS=1 MKL_NUM_THREADS=2", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"}),
        ("DataLoader(..., num_workers=4, persistent_workers=True)", {LOADER_VARIABLE: '{"num_workers": 4, "persistent_workers": true}'}),
        ("DataLoader(..., collate_fn=...)", None),
        ("gputop stacks 7", None),
        ("DataLoader(..., num_workers)", None),
        ("export OMP_NUM_THREADS='1", None),
        ("export OMP_NUM_THREADS", None),
        ("", None),
    ],
)
def test_a_new_start_follows_what_variables_and_arguments_say(command: str, variables: dict[str, str] | None) -> None:
    assert environment_of(command) == variables


@pytest.mark.parametrize(
    "command",
    [
        "chrt --idle --all-tasks --pid 0 {pid}",
        "echo 19 > /proc/{pid}/autogroup",
        "ionice -c 3 -p {pid}",
        "for p in {pid}; do taskset -apc 0-1 $p; done",
        "for pid in {pid}; do chrt --idle --all-tasks --pid 0 $pid; done",
        "for pid in {pid}; do chrt --idle --all-tasks --pid 0 $pid && echo 19 > /proc/$pid/autogroup; done",
        "renice -n 19 {pid}",
        "renice 19 -p {pid}",
        "taskset -p 0x3 {pid}",
        "ionice -c3 -p{pid}",
        "chrt -i -p 0 {pid}",
        "kill -CONT {pid}",
    ],
)
def test_only_what_is_the_workloads_own_is_changed(command: str) -> None:
    job = Running("affinity", scenario.load("affinity"), 1.0, Path(), {})
    with running() as own:
        assert SHELL.fullmatch(command)
        assert is_own(command.format(pid=own.pid), job)
        assert not is_own(command.format(pid=os.getppid()), job)
    assert not is_own("echo 100 > /sys/fs/cgroup/system.slice/cpu.weight", job)


@pytest.mark.parametrize(
    "command",
    [
        "renice -n 19 -p {pid}; kill -9 1",
        "renice -n 19 -p {pid} & kill -9 1",
        "renice -n 19 -p {pid} | sh",
        "renice -n 19 -p {pid} 1",
        "renice -n 19 -u root",
        "renice -n $(id) -p {pid}",
        "renice -n `id` -p {pid}",
        "renice -n 19 -p {pid} > /etc/passwd",
        "renice -n 19 -p {pid}\nid",
        "kill -9 -1 {pid}",
        "kill -9 0 {pid}",
        "echo {pid} > /etc/passwd",
        "echo $(id) > /proc/{pid}/autogroup",
        "echo $((2 * $(cat /etc/passwd))) > /sys/fs/cgroup/cpu/gputop-mine/cpu.cfs_quota_us",
        "echo 19 > /proc/{pid}/../1/autogroup",
        "echo 1 > /sys/fs/cgroup/gputop-mine/../system.slice/cpu.weight",
        "echo 1 > /sys/fs/cgroup/gputop-mine/cgroup.procs",
        "echo 1 > /sys/fs/cgroup/gputop-mine/cpu.weight; echo 1 > /sys/fs/cgroup/user.slice/cpu.weight",
        "for p in {pid} 1; do taskset -apc 0-1 $p; done",
        "for p in {pid}; do kill -9 1; done",
        "for p in {pid}; do id; done",
        "taskset -c 0 id {pid}",
        "ionice -c 3 id -p {pid}",
    ],
)
def test_a_line_that_does_more_is_refused(command: str) -> None:
    job = Running("affinity", scenario.load("affinity"), 1.0, Path(), {})
    with running() as own:
        assert not is_own(command.format(pid=own.pid), job)
    assert is_own("echo '8:0 rbps=max' > /sys/fs/cgroup/gputop-mine/io.max", job)


def test_a_mask_is_widened_with_its_control_group() -> None:
    command = 'echo 0-3 > "/sys/fs/cgroup$(cat /proc/{pid}/cpuset)/cpuset.cpus"; for p in {pid} 7; do taskset -apc 0-3 $p; done'
    found = targets(command.format(pid=os.getpid()))
    assert found is not None
    assert found == ({os.getpid(), 7}, {Path("/proc/self/cpuset").read_text().strip()})
    assert targets(command.format(pid="7; id")) is None


@pytest.mark.parametrize(
    ("gain", "promised", "bound", "word"),
    [(None, 2.0, 2.0, "not tried"), (0.8, 2.0, 2.0, "HARMS"), (1.0, None, None, "nothing"), (1.45, 2.0, 3.0, "SHORT"),
     (1.55, 2.0, 3.0, "helps"), (1.0, 1.02, 1.02, "nothing"), (2.5, 1.9, 2.0, "BEYOND"), (9.0, None, None, "helps")],
)  # fmt: skip
def test_a_gain_is_called_by_its_size_what_was_promised_and_its_bound(
    gain: float | None, promised: float | None, bound: float | None, word: str
) -> None:
    assert Outcome("affinity", [Trial(bound=bound, promised=promised, gain=gain)]).word == word


def test_the_median_of_the_runs_that_were_not_disturbed_counts() -> None:
    gains = [(2.0, ""), (0.1, "others took 1.4 CPUs"), (1.2, ""), (1.9, "")]
    outcome = Outcome("affinity", [Trial(promised=1.8, gain=gain, why_not=why) for gain, why in gains])
    assert (outcome.gain, len(outcome.counted), outcome.word) == (1.9, 3, "helps")
    assert Outcome("affinity", [Trial(gain=0.1, why_not="others took 1.4 CPUs")]).word == "not tried"


@pytest.mark.parametrize(
    ("fix", "factor"),
    [
        (Fix("Start more workers", "DataLoader(..., num_workers=4, persistent_workers=True)"), 1.6),
        (Fix("Let hog (7) run only when no other process wants the CPU", "chrt --idle --all-tasks --pid 0 7"), 1.9),
        (Fix("Raise the quota of /job to 2 CPUs", "echo 200000 > /sys/fs/cgroup/job/cpu.max"), 1.4),
        (Fix("Let the job use all CPUs now", "for p in 7; do taskset -apc 0-1 $p; done"), 1.3),
        (Fix("Raise the memory limit of /job", "echo 9 > /sys/fs/cgroup/job/memory.max"), 2.5),
        (Fix("Use more processes with one thread each"), 2.5),
    ],
)
def test_what_is_promised_is_the_prediction_of_that_change_or_the_bound(fix: Fix, factor: float) -> None:
    told = {"4 workers": 1.6, "8 workers": 1.7, "without hog": 1.9, "without the CPU quota": 1.4, "all 2 CPUs of the host": 1.3}
    assert promise(fix, 2.5, [WhatIf(change, value, value, value, "") for change, value in told.items()]) == factor
    assert promise(fix, 2.5, []) == 2.5


@pytest.mark.parametrize(
    ("text", "ends"),
    [("Have plain_train.py (7) run on another host, or at another time", True),
     ("Run gzip (7, 8) outside of /job, or end it if it is not needed", True), ("Have archiver (7) hold it for shorter", False)],
)  # fmt: skip
def test_who_is_to_go_elsewhere_is_ended(text: str, ends: bool) -> None:
    assert ends_culprits(text) == ends


def test_arguments_of_a_loader_are_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    from torch.utils.data import DataLoader

    from tests.workloads import loop

    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)  # so that the change ends with the test
    monkeypatch.setenv(LOADER_VARIABLE, json.dumps({"num_workers": 1, "prefetch_factor": 5}))
    loop.change_loaders()
    for made in (loop.loader([0] * 8, workers=2), DataLoader([0] * 8, persistent_workers=True)):  # type: ignore[arg-type]
        assert (made.num_workers, made.prefetch_factor, made.persistent_workers) == (1, 5, True)


def test_a_loader_that_gets_no_workers_keeps_no_argument_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    from torch.utils.data import DataLoader

    from tests.workloads import loop

    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    monkeypatch.setenv(LOADER_VARIABLE, json.dumps({"num_workers": 0}))
    loop.change_loaders()
    assert loop.loader([0] * 8, workers=2, prefetch_factor=5).num_workers == 0  # type: ignore[arg-type]


def test_a_quota_may_be_so_many_times_the_groups_period() -> None:
    group = "/sys/fs/cgroup/cpu/gputop-mine"
    assert targets(f"echo $((2 * $(cat {group}/cpu.cfs_period_us))) > {group}/cpu.cfs_quota_us") == (set(), {"/cpu/gputop-mine"})


def test_work_for_who_is_to_blame_is_not_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that two share is as busy with one of them, and a job with steps is measured by them."""
    simgpu.create(tmp_path / "simgpu", devices=1)
    gpu = simgpu.attach(tmp_path / "simgpu").dev[0]
    mine, theirs = gpu.procs[0], gpu.procs[1]
    mine.pid, theirs.pid = os.getpid(), 1 << 30
    job = Running("affinity", scenario.load("affinity"), 1.0, tmp_path, {}, culprits={1 << 30: "other"})

    def passed(_seconds: float) -> None:
        gpu.booked_ns, mine.busy_ns, theirs.busy_ns = gpu.booked_ns + 40, mine.busy_ns + 10, theirs.busy_ns + 30
        clock.append(clock[-1] + 20)
        (tmp_path / "steps-0").write_text("0.1\n" * len(clock))

    clock = [0]
    monkeypatch.setattr(pace.time, "sleep", passed)
    monkeypatch.setattr(pace.time, "monotonic_ns", lambda: clock[-1])
    assert pace.work(job, 1.0) == 10 / 20
    first, second = pace.pace(job, 1.0), pace.pace(job, 1.0)
    assert (first.steps_per_s, first.work) == (1 / 20e-9, 10 / 20)
    assert second.gain(first) == 1.0


@pytest.mark.parametrize(
    ("after", "before", "gain"),
    [((8.0, 0.1), (4.0, 0.9), 2.0), ((0.0, 0.6), (4.0, 0.3), 0.0025), ((0.0, 0.6), (0.0, 0.3), 2.0), ((0.0, 0.0), (0.0, 0.0), 1.0)],
)
def test_gains_are_of_one_unit(after: tuple[float, float], before: tuple[float, float], gain: float) -> None:
    """A job that has made no step yet after its restart is not compared by another measure, and one that stood still is not harmed."""
    assert pace.Pace(*after).gain(pace.Pace(*before)) == gain
