"""Each intervention is planned for its causes, changes what it says, and puts it back exactly."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from gputop.findings.verdict import CAUSES
from gputop.prove.change import BACK, DEVICE, FILE, Change, Plan, Record, Refusal, autogroup_of, restore, write_value
from gputop.prove.groups import Groups
from gputop.prove.guardian import Guard
from gputop.prove.interventions import INTERVENTIONS, NONE, idle_priority, interventions, io_priority, memory_limit, plan, stop
from gputop.prove.processes import read_process
from gputop.prove.scene import Scene
from gputop.system.text import counted
from tests.experiments.processes import STARTS_A_THREAD, THREADS, case, running, settings, started, target, threads
from tests.wait import until
from tests.workloads import cgroup

CPUS = sorted(os.sched_getaffinity(0))


def _planned(*arguments: object, **more: object) -> Plan:
    made = plan(*arguments, **more)  # type: ignore[arg-type]
    assert isinstance(made, Plan), made
    return made


def _text(path: Path) -> str:
    return path.read_text().strip()


@pytest.fixture
def cpu_group() -> Iterator[Path]:
    if why := cgroup.missing("cpu"):
        pytest.skip(why)
    with cgroup.group("cpu", "experiment") as path:
        yield path


@pytest.mark.parametrize("name", INTERVENTIONS)
def test_a_docstring_says_what_right_and_how_it_is_undone(name: str) -> None:
    doc = importlib.import_module(f"gputop.prove.interventions.{name}").__doc__ or ""
    parts = ("Change: ", "May be kept: ", "Right needed: ", "Undo: ")
    at = [doc.find(part) for part in parts]
    assert min(at) >= 0
    assert at == sorted(at)


def test_each_cause_has_an_experiment_or_says_why_not() -> None:
    served = {cause for one in interventions() for cause in one.causes}
    assert served | NONE.keys() == set(CAUSES), "a cause has an intervention, or a reason in gputop.prove.interventions.NONE"
    assert not served & NONE.keys()
    assert len({one.name for one in interventions()}) == len(INTERVENTIONS)


@pytest.mark.parametrize("cause", sorted(NONE))
def test_a_cause_without_one_is_told_in_a_line(cause: str) -> None:
    with running() as trainer, running() as other:
        made = plan(case(trainer, other, cause=cause))
        assert isinstance(made, Refusal)
        assert cause in made.reason
        assert "\n" not in made.reason


def test_all_that_shares_a_session_is_named_and_the_jobs_own_are_not_slowed() -> None:
    if Path("/proc/sys/kernel/sched_autogroup_enabled").read_text() != "1\n":
        pytest.skip("this kernel has no autogroup")
    code = "import os, time\nfor _ in range(2):\n    if not os.fork(): os.setpgrp(); time.sleep(600)\nprint(flush=True)\ntime.sleep(600)"
    with running() as trainer, started(code, own_session=True) as leader:
        hog, other = (target(child.pid) for child in psutil.Process(leader.pid).children())
        until(lambda: {read_process(one.pid).group for one in (hog, other)} == {hog.pid, other.pid})
        try:
            says = _planned(case(trainer, hog)).says
            assert says.startswith(f"{hog} to idle priority, with the rest of its session: ")
            assert {str(target(leader.pid)), str(other)} == set(says.partition("session: ")[2].split(", "))
            made = plan(replace(case(trainer, hog), family=(trainer, other)))
            assert isinstance(made, Refusal) or made.intervention == "one-cpu"
        finally:
            for one in (hog, other):
                os.kill(one.pid, signal.SIGKILL)


def test_no_mask_is_told_where_there_is_none() -> None:
    with running() as trainer:
        made = plan(case(trainer, cause="affinity"))
        if set(CPUS) < Groups().online:
            pytest.skip("the tests themselves have a mask")
        assert made == Refusal(f"no mask holds the job: it may use all {counted(len(CPUS), 'CPU')} of this machine")


def test_a_session_of_its_own_gets_the_least_weight() -> None:
    if Path("/proc/sys/kernel/sched_autogroup_enabled").read_text() != "1\n":
        pytest.skip("this kernel has no autogroup")
    with running() as trainer, running(own_session=True) as hog:
        file = Path(f"/proc/{hog.pid}/autogroup")
        before = _text(file)
        with Guard(_planned(case(trainer, hog))) as guard:
            guard.on()
            assert _text(file).endswith(" nice 19")
            assert os.sched_getscheduler(hog.pid) == os.SCHED_OTHER
        assert _text(file) == before


@pytest.mark.parametrize(
    ("names", "setting"),
    [(("", ""), "policy"), (("", "/autogroup-9"), "autogroup"), (("/autogroup-9", ""), "policy"), (("/autogroup-9",) * 2, "policy")],
)
def test_the_session_that_the_kernel_booted_with_has_no_weight(
    names: tuple[str, str], setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """init's session, and what never left it, is in the root group itself: /proc/PID/autogroup is empty there."""
    monkeypatch.setattr(idle_priority, "read_text", lambda *_: "1\n")
    with running() as trainer, running(own_session=True) as hog:
        found = {trainer.pid: (names[0], 0), hog.pid: (names[1], 0)}
        monkeypatch.setattr(idle_priority, "autogroup_of", lambda pid: found.get(pid, ("/autogroup-1", 0)))
        assert [change.setting for change in _planned(case(trainer, hog)).changes] == [setting]


def test_a_process_without_a_weight_of_its_session_is_no_error() -> None:
    text = Path("/proc/1/autogroup").read_text().split()
    assert autogroup_of(1) == ((text[0], int(text[2])) if text else ("", 0))


def test_a_sessions_weight_is_put_back_though_its_leader_ended() -> None:
    code = "import os, time\nif os.fork(): print(flush=True); time.sleep(600)\ntime.sleep(600)"
    with running(), started(code, own_session=True) as child:
        hog = target(child.pid)
        other = psutil.Process(child.pid).children()[0].pid
        before = Path(f"/proc/{other}/autogroup").read_text()
        record = Record("autogroup", "19", "0", hog.pid, hog.start_ticks, hog.pid, hog.start_ticks, path=before.split()[0])
        write_value(record, "19")
        assert Path(f"/proc/{other}/autogroup").read_text() != before
        child.kill()
        child.wait()
        assert restore(record) == BACK
        assert Path(f"/proc/{other}/autogroup").read_text() == before


def test_who_cannot_give_way_is_held_to_one_cpu_beside_those_who_can(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as trainer, running() as hog, running() as other:
        monkeypatch.setattr(idle_priority, "may_raise", lambda pid, _nice: pid != other.pid)
        made = _planned(case(trainer, hog, other))
        assert made.intervention == "idle-priority"
        assert [change.setting for change in made.changes] == ["policy", "cpu-mask"][: 1 + (len(CPUS) > 1)]
        monkeypatch.setattr(idle_priority, "may_raise", lambda _pid, _nice: False)
        made = plan(case(trainer, hog, other))
        assert isinstance(made, Refusal) or made.intervention == "one-cpu"


def test_a_disk_hog_gets_the_idle_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import time\nfile = open({str(tmp_path / 'data')!r}, 'wb')\nprint(flush=True)\ntime.sleep(600)"
    with running() as trainer, running(code) as hog:
        monkeypatch.setattr(io_priority, "_schedulers", lambda disks: {"none [mq-deadline]"} if disks else set())
        before = settings(hog.pid)
        with Guard(_planned(case(trainer, hog, cause="disk-io"))) as guard:
            guard.on()
            assert psutil.Process(hog.pid).ionice().ioclass == psutil.IOPRIO_CLASS_IDLE
        assert settings(hog.pid) == before
        monkeypatch.setattr(io_priority, "_schedulers", lambda _disks: {"[none]"})
        made = plan(case(trainer, hog, cause="disk-io"))
        assert not isinstance(made, Plan) or made.intervention != "io-priority"


def test_real_time_is_put_back() -> None:
    with running() as trainer, running() as hog:
        os.sched_setscheduler(hog.pid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(3))
        before = settings(hog.pid)
        with Guard(_planned(case(trainer, hog))) as guard:
            guard.on()
            assert os.sched_getscheduler(hog.pid) == os.SCHED_IDLE | os.SCHED_RESET_ON_FORK
        assert settings(hog.pid) == before


@pytest.mark.parametrize(("setting", "new"), [("nice", "19"), ("io-priority", "3 0"), ("policy", "5 0")])
def test_a_setting_of_each_thread(setting: str, new: str) -> None:
    with running(THREADS) as hog:
        psutil.Process(threads(hog.pid)[-1]).ionice(psutil.IOPRIO_CLASS_BE, 6)
        before = settings(hog.pid)
        with Guard(Plan(setting, "a change", (Change(setting, new, hog),), True)) as guard:
            guard.on()
            assert all(now != before[tid] for tid, now in settings(hog.pid).items())
            guard.off()
            assert settings(hog.pid) == before


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
def test_a_wider_mask_for_the_job_and_who_begins_meanwhile() -> None:
    with started(STARTS_A_THREAD) as child:
        trainer = target(child.pid)
        os.sched_setaffinity(trainer.pid, CPUS[:1])
        with Guard(_planned(case(trainer, cause="affinity"))) as guard:
            guard.on()
            assert os.sched_getaffinity(trainer.pid) == set(CPUS)
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
            until(lambda: len(threads(trainer.pid)) == 2)
            assert all(os.sched_getaffinity(tid) == set(CPUS) for tid in threads(trainer.pid))
        assert [os.sched_getaffinity(tid) for tid in threads(trainer.pid)] == [set(CPUS[:1])] * 2


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
def test_a_job_is_bound_beside_its_gpu_and_let_go_again() -> None:
    with running() as trainer:
        before, far = os.sched_getaffinity(trainer.pid), replace(case(trainer, cause="numa-remote"), near_cpus=frozenset([*CPUS[1:], 8191]))
        with Guard(_planned(far)) as guard:
            guard.on()
            assert os.sched_getaffinity(trainer.pid) == set(CPUS[1:])
        assert os.sched_getaffinity(trainer.pid) == before


@pytest.mark.parametrize(("near", "reason"), [(frozenset[int](), "not known"), (frozenset({8190, 8191}), "no CPU of its GPUs' NUMA node")])
def test_nothing_is_bound_to_a_node_that_is_unknown_or_not_granted(near: frozenset[int], reason: str) -> None:
    with running() as trainer:
        made = plan(replace(case(trainer, cause="numa-remote"), near_cpus=near))
        assert isinstance(made, Refusal)
        assert reason in made.reason


def test_a_mask_that_is_wide_already_is_the_cpusets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "online", frozenset(range(1024)))
    with running() as trainer:
        made = plan(case(trainer, cause="affinity"))
        assert isinstance(made, Refusal)
        assert "cpuset" in made.reason


def test_the_least_weight_for_a_group_of_its_own(cpu_group: Path) -> None:
    file, least = (cpu_group / "cpu.weight", "1") if cgroup.is_v2("cpu") else (cpu_group / "cpu.shares", "2")
    with running() as trainer, running(own_session=True) as hog:
        cgroup.add(cpu_group, [hog.pid])
        before = _text(file)
        made = _planned(case(trainer, hog))
        assert made.intervention == "cpu-weight"
        assert made.may_keep
        with Guard(made) as guard:
            guard.on()
            assert _text(file) == least
        assert _text(file) == before


def test_a_group_that_others_are_in_is_left_alone(cpu_group: Path) -> None:
    with running() as trainer, running() as hog, running() as bystander:
        cgroup.add(cpu_group, [hog.pid, bystander.pid])
        made = plan(case(trainer, hog))
        assert isinstance(made, Plan) == (len(CPUS) > 1)
        assert not isinstance(made, Plan) or made.intervention == "one-cpu"


def test_a_quota_is_raised_with_those_above_it(cpu_group: Path) -> None:
    if cgroup.is_v2("cpu"):
        (cpu_group / "cgroup.subtree_control").write_text("+cpu")
    below = cpu_group / "trainer"
    below.mkdir()
    try:
        with running() as trainer:
            cgroup.limit_cpu(cpu_group, 0.5)
            cgroup.limit_cpu(below, 0.25)
            cgroup.add(below, [trainer.pid])
            files = [path / ("cpu.max" if cgroup.is_v2("cpu") else "cpu.cfs_quota_us") for path in (cpu_group, below)]
            before = [_text(file) for file in files]
            with Guard(_planned(case(trainer, cause="cgroup-throttle"))) as guard:
                guard.on()
                assert [_text(file).split()[0] for file in files] == [str((os.cpu_count() or 1) * 100_000)] * 2
                guard.off()
                assert [_text(file) for file in files] == before
                guard.on()
            assert [_text(file) for file in files] == before
    finally:
        cgroup.remove(below, cpu_group)


def test_a_memory_limit_is_raised_and_put_back_though_more_is_held() -> None:
    if why := cgroup.missing("memory"):
        pytest.skip(why)
    code = "import sys\nprint(flush=True)\nsys.stdin.readline()\nheld = b'x' * (150 << 20)\nprint(flush=True)\nsys.stdin.readline()"
    code += "\ndel held\nprint(flush=True)\nsys.stdin.readline()"
    with cgroup.group("memory", "experiment") as path, started(code) as child:
        file = path / ("memory.max" if cgroup.is_v2("memory") else "memory.limit_in_bytes")
        cgroup.limit_memory(path, 100 << 20)
        cgroup.add(path, [child.pid])

        def step() -> None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert child.stdout.readline() == b"\n"

        before = _text(file)
        with Guard(_planned(case(target(child.pid), cause="memory-pressure"))) as guard:
            guard.on()
            assert int(_text(file)) > int(before)
            step()
            with pytest.raises(OSError, match="not put back yet"):
                guard.off()
            step()
            guard.off()
            assert _text(file) == before


def test_a_memory_limit_needs_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := cgroup.missing("memory"):
        pytest.skip(why)
    monkeypatch.setattr(memory_limit, "_available_bytes", lambda: 50 << 20)
    with cgroup.group("memory", "experiment") as path, running() as trainer:
        cgroup.limit_memory(path, 100 << 20)
        cgroup.add(path, [trainer.pid])
        made = plan(case(trainer, cause="memory-pressure"))
        assert isinstance(made, Refusal)
        assert "50 MB available" in made.reason


@pytest.mark.usefixtures("files_for_groups")
def test_memory_max_of_v2_is_not_lowered_below_what_is_held(tmp_path: Path) -> None:
    """The kernel would kill: files stand in for the group."""
    file, current = tmp_path / "memory.max", tmp_path / "memory.current"
    file.write_text("2000")
    current.write_text("1500")
    record = Record(FILE, "2000", "1000", path=str(file))
    with pytest.raises(OSError, match="the kernel would kill"):
        restore(record)
    assert file.read_text() == "2000"
    current.write_text("900")
    assert restore(record) == BACK
    assert file.read_text() == "1000"


def test_a_read_limit_is_lifted() -> None:
    if why := cgroup.missing("blkio"):
        pytest.skip(why)
    device = cgroup.device_of(Path("/"))
    with cgroup.group("blkio", "experiment") as path, running() as trainer:
        cgroup.limit_reads(path, device, 1 << 20)
        cgroup.add(path, [trainer.pid])
        file = path / ("io.max" if cgroup.is_v2("blkio") else "blkio.throttle.read_bps_device")
        before = _text(file)
        assert device in before
        with Guard(_planned(case(trainer, cause="disk-io"))) as guard:
            guard.on()
            assert "1048576" not in _text(file)
        assert _text(file) == before


@pytest.mark.usefixtures("files_for_groups")
def test_a_line_of_a_disk_that_had_none(tmp_path: Path) -> None:
    file = tmp_path / "io.max"
    file.write_text("8:16 rbps=5 wbps=max riops=max wiops=max")
    record = Record(DEVICE, "8:0 rbps=1", "8:0 rbps=max wbps=max riops=max wiops=max", path=str(file))
    other = replace(record, new="8:16 rbps=1")
    assert restore(record) == BACK  # the file as it is has no line of 8:0
    assert file.read_text().startswith("8:16")
    assert record.subject != other.subject


def test_a_stopped_worker_goes_on_and_is_stopped_again() -> None:
    with running() as trainer:
        os.kill(trainer.pid, signal.SIGSTOP)
        until(lambda: read_process(trainer.pid).state == "T")
        with Guard(_planned(case(trainer, cause="hung-worker"))) as guard:
            guard.on()
            until(lambda: read_process(trainer.pid).state != "T")
            guard.off()
            until(lambda: read_process(trainer.pid).state == "T")


def test_a_worker_that_is_not_stopped_is_told() -> None:
    with running() as trainer:
        made = plan(case(trainer, cause="hung-worker"))
        assert isinstance(made, Refusal)
        assert "gputop stacks" in made.reason


def test_stopping_needs_leave() -> None:
    with running() as trainer, running() as hog:
        made = plan(case(trainer, hog, cause="disk-io"))
        assert not isinstance(made, Plan) or made.intervention != "stop"
        scene = Scene(case(trainer, hog), allow_stop=True, allow_others=True)
        assert isinstance(stop.INTERVENTION.make(scene.case, scene), Plan)
