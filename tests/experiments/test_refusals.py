"""Who is never touched, and what an experiment refuses before it changes anything."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import psutil
import pytest
from msgspec.structs import replace

from gputop.commands.live import left_behind
from gputop.prove import host
from gputop.prove.change import FILE, GONE_BY_NOW, IDLE, Change, Plan, Record, Refusal, TargetProcess, held, read_value, restore
from gputop.prove.guardian import Guard
from gputop.prove.interventions import plan, stop
from gputop.prove.journal import create, leftovers, undo_leftovers
from gputop.prove.permission import why_never
from gputop.prove.processes import KTHREADD, read_process, read_processes
from gputop.prove.scene import Scene, may_raise
from gputop.prove.subjects import find
from tests.experiments.processes import ROOT, case, record_of, running, started, target
from tests.stranger import nobodys_process
from tests.wait import PATIENCE_S, until
from tests.workloads import cgroup

root = pytest.mark.skipif(os.geteuid() != 0, reason="not root")


def _idle(one: TargetProcess) -> Plan:
    return Plan("idle-priority", f"{one} to idle priority", (Change("policy", IDLE, one),), may_keep=True)


def test_never_touched() -> None:
    table = read_processes()
    assert why_never(table[1], table) == "is the first process"
    assert why_never(table[os.getpid()], table) == "is gputop's own"
    assert why_never(table[os.getppid()], table) == "runs this terminal"
    if KTHREADD in table and table[KTHREADD].kthread:
        assert why_never(table[KTHREADD], table) == "is a kernel thread"


@pytest.mark.parametrize("words", [["-m", "gputop.collector"], ["-P", "-m", "gputop", "record"], ["/usr/bin/gputop"]])
def test_gputops_own_are_never_touched(words: list[str]) -> None:
    """The interpreter does not get that far: its command line is what counts."""
    with running() as trainer, running() as other:
        proc = read_process(other.pid)
        line = b"\0".join([sys.executable.encode(), *(word.encode() for word in words), b""])
        assert _why_with(proc.pid, line) == "is gputop's own"
        assert isinstance(plan(case(trainer, other)), Plan)


def _why_with(pid: int, line: bytes) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gputop.prove.permission.cmdline_of", lambda _pid: line.decode().rstrip("\0").split("\0"))
        return why_never(read_process(pid), read_processes())


@pytest.mark.parametrize("name", ["sshd", "sshd-session", "systemd", "systemd-journal", "(sd-pam)", "dbus-daemon"])
def test_the_system_is_never_touched(name: str) -> None:
    code = f"import ctypes, time\nctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\nprint(flush=True)\ntime.sleep(600)"
    with running() as trainer, running(code) as daemon:
        made = plan(case(trainer, daemon))
        assert isinstance(made, Refusal)
        assert f"{daemon} is a part of the system" in made.reason


def test_neither_the_job_nor_what_started_it() -> None:
    code = "import subprocess, sys, time\nprint(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\n"
    with started(f"{code}time.sleep(600)") as launcher:
        job = next(proc for proc in read_processes().values() if proc.ppid == launcher.pid)
        trainer = target(job.pid)
        made = plan(case(trainer, target(launcher.pid)))
        assert isinstance(made, Refusal)
        assert "what the job was started by" in made.reason
        made = plan(case(trainer, trainer))
        assert isinstance(made, Refusal)
        assert "is of the job itself" in made.reason


def test_readonly() -> None:
    with running() as trainer, running() as hog:
        assert plan(case(trainer, hog), readonly=True) == Refusal("experiments are off: --readonly")


@root
def test_others_are_named_and_asked_about() -> None:
    with running() as trainer, nobodys_process() as pid:
        hog = target(pid)
        made = plan(case(trainer, hog))
        assert isinstance(made, Plan)
        assert [one.pid for one in made.others] == [pid]
        with pytest.raises(OSError, match=f"sleep \\({pid}\\) of another user"):
            Guard(made).__enter__()
        made = plan(case(trainer, hog), allow_others=False)
        assert isinstance(made, Refusal)
        assert "belongs to another user" in made.reason


@root
def test_under_sudo_roots_processes_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "65534")
    with running() as trainer, running() as hog:
        made = plan(case(trainer, hog))
        assert isinstance(made, Plan)
        assert [one.pid for one in made.others] == [hog.pid]


@root
def test_without_root_what_cannot_be_taken_back_is_not_begun() -> None:
    """A user without RLIMIT_NICE may lower priorities, not raise them again; masks go both ways."""
    code = """
import os, sys
sys.path[:0] = sys.argv[2:]
import gputop.prove.interventions as them
from gputop.prove.change import Case, Plan, TargetProcess
from gputop.prove.guardian import Guard
from gputop.prove.interventions import idle_priority
from gputop.prove.processes import read_process
from gputop.prove.scene import Scene
them.interventions()
open('/dev/null', encoding='ascii').close()  # who becomes somebody else may not be able to import any more
import json, psutil, subprocess, time
os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
def target(pid): return TargetProcess(pid, read_process(pid).start_ticks, 'it')
children = []
for _ in range(2):
    pid = os.fork()
    if not pid:
        os.closerange(0, 3)
        os.setpgrp()
        time.sleep(20)
        os._exit(0)
    children.append(target(pid))
trainer, hog = children
root = target(int(sys.argv[1]))
time.sleep(.2)
case = Case('cpu-contention', trainer, (trainer,), (), (hog,))
made = them.plan(case)
told = them.plan(Case('cpu-contention', trainer, (trainer,), (), (root,)))
refused = idle_priority.INTERVENTION.make(case, Scene(case, False, False))
for one in children: os.kill(one.pid, 9)
print(json.dumps([getattr(made, 'intervention', str(made)), str(told), refused.reason]))
"""
    with running() as roots:
        command = [sys.executable, "-c", code, str(roots.pid), str(ROOT)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert ('"one-cpu"' in done.stdout) == ((os.cpu_count() or 1) > 1)
        assert "belongs to another user: run gputop prove as root" in done.stdout
        assert "only root can take that back" in done.stdout


def test_who_may_raise_a_niceness() -> None:
    assert may_raise(os.getpid(), 20)
    assert may_raise(os.getpid(), -20) == (os.geteuid() == 0)


def test_a_reused_pid_is_not_touched() -> None:
    with running() as trainer, running() as now:
        before = replace(now, start_ticks=now.start_ticks - 1)
        with pytest.raises(ProcessLookupError), held(before.pid, before.start_ticks):
            pass
        record = replace(record_of(now, "nice", "0", "19"), start_ticks=before.start_ticks, tid_ticks=before.start_ticks)
        with pytest.raises(ProcessLookupError):
            read_value(record)
        assert restore(replace(record, old="5")) == GONE_BY_NOW
        assert os.getpriority(os.PRIO_PROCESS, now.pid) == 0
        made = plan(case(trainer, before))
        assert isinstance(made, Refusal)
        assert "has ended" in made.reason
        with Guard(_idle(before)) as guard, pytest.raises(OSError, match="it has ended"):
            guard.on()
        assert os.sched_getscheduler(now.pid) == os.SCHED_OTHER


@pytest.mark.usefixtures("files_for_groups")
def test_a_control_group_made_anew_is_not_touched(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "cpu.weight").write_text("100")
    record = Record(FILE, "1", "50", path=str(group / "cpu.weight"), inode=group.stat().st_ino + 1)
    assert restore(record) == GONE_BY_NOW
    assert (group / "cpu.weight").read_text() == "100"
    (group / "cpu.weight").unlink()
    (group / "cpu.weight").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        restore(replace(record, inode=0))
    assert not (tmp_path / "elsewhere").exists()


def test_hostile_names_are_cleaned() -> None:
    name = b"\x1b[31mred\x07\xff"
    code = f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)\nif os.fork(): print(flush=True)\ntime.sleep(600)"
    with running() as trainer, started(code) as parent:
        child = next(proc for proc in read_processes().values() if proc.ppid == parent.pid)
        hog = replace(target(child.pid), name="hog")
        scene = Scene(case(trainer, hog), allow_stop=False, allow_others=True)
        assert [one.pid for one in scene.culprits] == [parent.pid]  # the first of its job
        assert str(scene.culprits[0]).startswith(f"hog ({child.pid}) and the rest of ")
        made = plan(case(trainer, hog))
        assert isinstance(made, Plan)
        assert made.says.isprintable()
        assert "red" in made.says


def test_a_compiler_stands_for_its_build() -> None:
    """What is started next inherits the setting."""
    code = "import subprocess, sys\nprint(flush=True)\nwhile True: subprocess.run(['sleep', '0.3'])"
    with running() as trainer, started(code) as make:
        compiler = None
        while compiler is None:
            compiler = next((proc for proc in read_processes().values() if proc.ppid == make.pid), None)
        scene = Scene(case(trainer, target(compiler.pid)), allow_stop=False, allow_others=True)
        assert [one.pid for one in scene.culprits] == [make.pid]


def test_a_folder_that_is_not_ones_own_is_refused(state: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    state.symlink_to(elsewhere)
    with running() as hog, pytest.raises(OSError, match="is not a folder that only uid"):
        Guard(_idle(hog)).__enter__()
    state.unlink()
    state.mkdir()
    state.chmod(0o777)
    with running() as hog, pytest.raises(OSError, match="is not a folder that only uid"):
        Guard(_idle(hog)).__enter__()
    assert not list(elsewhere.iterdir())


def test_a_place_that_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PLACES", ("/proc/1/nowhere",))
    with running() as hog, pytest.raises(OSError, match="cannot be made"):
        Guard(_idle(hog)).__enter__()


@root
def test_a_full_disk_is_refused_before_any_change(state: Path) -> None:
    state.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=755", "none", str(state)], capture_output=True, check=False).returncode:
        pytest.skip("no mount here")
    try:
        with running() as hog:
            guard = Guard(_idle(hog)).__enter__()
            _fill(state)
            padding = Record("nice", "0", "0", path="x" * 4096)
            assert guard._journal is not None
            with pytest.raises(OSError, match="No space left"):
                guard._journal.append([padding, padding])
            guard.close()
            _fill(state)
            with pytest.raises(OSError, match="journal of old values cannot be written"):
                Guard(_idle(hog)).__enter__()
            assert os.sched_getscheduler(hog.pid) == os.SCHED_OTHER
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


def _fill(folder: Path) -> None:
    with suppress(OSError), open(folder / f"{time.monotonic_ns()}", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.mark.parametrize("harm", ["cut", "flipped", "garbage", "readable", "link", "fifo"])
def test_a_damaged_journal_is_told_and_not_applied(state: Path, harm: str) -> None:
    with running() as hog:
        journal = create("it")
        journal.append([record_of(hog, "nice", "7", "0")])
        path = Path(journal.path)
        os.close(journal.fd)
        data = path.read_bytes()
        if harm == "cut":
            path.write_bytes(data[:40] + b"\n" + data[60:])
        elif harm == "flipped":
            path.write_bytes(data.replace(b'"old":"7"', b'"old":"9"'))
        elif harm == "garbage":
            path.write_bytes(b"\xff" * 300 + b"\n")
        elif harm == "readable":
            path.chmod(0o644)
        else:
            path.unlink()
            os.mkfifo(path) if harm == "fifo" else path.symlink_to(state)
        (left,) = leftovers()
        assert left.problem
        assert "\n" not in left.problem
        assert undo_leftovers() == [left.problem]
        assert os.getpriority(os.PRIO_PROCESS, hog.pid) == 0
        with pytest.raises(OSError, match="no experiment"):
            Guard(_idle(hog)).__enter__()


def test_a_line_that_was_being_written_was_not_applied() -> None:
    with running() as hog:
        journal = create("it")
        journal.append([record_of(hog, "nice", "3", "0")])
        os.write(journal.fd, b'0000aaaa {"setting":"nice","ne')
        os.close(journal.fd)
        assert undo_leftovers() == ["it: put back"]
        assert os.getpriority(os.PRIO_PROCESS, hog.pid) == 3


def test_the_next_start_says_what_was_left_behind() -> None:
    assert left_behind() == ""
    with running() as hog:
        journal = create("it")
        journal.append([record_of(hog, "nice", "0", "3")])
        assert left_behind() == ""  # somebody is at it
        os.close(journal.fd)
        assert "gputop prove --undo" in left_behind()
        undo_leftovers()
        assert left_behind() == ""


@pytest.mark.parametrize(("harm", "told"), [("version", "another version of gputop"), ("setting", "is damaged")])
def test_a_journal_that_is_not_understood_is_not_applied(harm: str, told: str) -> None:
    with running() as hog:
        journal = create("it")
        journal.append([record_of(hog, "colour" if harm == "setting" else "nice", "3", "0")])
        os.close(journal.fd)
        if harm == "version":
            path = Path(journal.path)
            header, _, rest = path.read_bytes().partition(b"\n")
            data = header.partition(b" ")[2].replace(b'"version":1', b'"version":2')
            path.write_bytes(b"%08x %s\n" % (zlib.crc32(data), data) + rest)
        (left,) = leftovers()
        assert told in left.problem
        assert undo_leftovers() == [left.problem]
        assert os.getpriority(os.PRIO_PROCESS, hog.pid) == 0


def test_a_journal_of_this_boot_is_found_under_another_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as hog:
        with monkeypatch.context() as patch:
            patch.setattr(os, "uname", lambda: SimpleNamespace(nodename="before-dhcp"))
            journal = create("it")
        journal.append([record_of(hog, "nice", "3", "0")])
        os.close(journal.fd)
        assert undo_leftovers() == ["it: put back"]
        assert os.getpriority(os.PRIO_PROCESS, hog.pid) == 3


@root
def test_a_limit_of_somebody_elses_job_is_asked_about(cpu_quota_of_nobody: TargetProcess) -> None:
    made = plan(case(cpu_quota_of_nobody, cause="cgroup-throttle"))
    assert isinstance(made, Plan), made
    assert made.others == (cpu_quota_of_nobody,)
    assert isinstance(plan(case(cpu_quota_of_nobody, cause="cgroup-throttle"), allow_others=False), Refusal)


@pytest.fixture
def cpu_quota_of_nobody() -> Iterator[TargetProcess]:
    if why := cgroup.missing("cpu"):
        pytest.skip(why)
    with cgroup.group("cpu", "experiment") as path, nobodys_process() as pid:
        (path / "cpu.cfs_quota_us" if (path / "cpu.cfs_quota_us").exists() else path / "cpu.max").write_text("50000")
        (path / "cgroup.procs").write_text(str(pid))
        yield target(pid)


def test_who_became_another_users_since_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as hog:
        monkeypatch.setattr("gputop.prove.subjects.is_own", lambda _proc: False)
        assert find((Change("policy", IDLE, hog),)) == []
        assert len(find((Change("policy", IDLE, hog),), frozenset({hog.pid}))) == 1


def test_a_job_does_not_stand_for_what_runs_with_other_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is touched is the first process of a job and those below it with the same rights."""
    code = "import subprocess\nprint(flush=True)\nsubprocess.run(['sleep', '600'])"
    with running() as trainer, started(code) as script:
        until(lambda: bool(psutil.Process(script.pid).children()))
        child = target(psutil.Process(script.pid).children()[0].pid)
        monkeypatch.setattr("gputop.prove.scene.uids_of", lambda pid: frozenset({pid}))
        scene = Scene(case(trainer, child), allow_stop=False, allow_others=True)
        assert [one.pid for one in scene.culprits] == [child.pid]


def test_what_ends_while_it_is_looked_at_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> NoReturn:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    with running() as trainer, running() as hog:
        monkeypatch.setattr("gputop.prove.interventions.idle_priority.first_nice", gone)
        monkeypatch.setattr("gputop.prove.interventions.one_cpu.narrowed", gone)
        made = plan(case(trainer, hog))
        assert isinstance(made, Refusal)
        assert made.reason == "cpu-contention: what is there could not be looked at (No such process): try again"


def test_a_shell_with_a_job_in_the_foreground_is_not_stopped() -> None:
    """The shell would take the terminal back from its job."""
    code = """
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    job = os.fork()
    if job == 0:
        os.setpgrp()
        time.sleep(600)
    time.sleep(.1)
    os.tcsetpgrp(0, job)
    time.sleep(600)
while os.tcgetpgrp(terminal) in (0, pid): time.sleep(.01)
print(pid, flush=True)
time.sleep(600)
"""
    with running() as trainer, subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as outer:
        try:
            assert outer.stdout is not None
            shell = target(int(outer.stdout.readline()))
            proc = read_process(shell.pid)
            assert proc.foreground not in (proc.group, -1)
            told = stop.INTERVENTION.make(case(trainer, shell), Scene(case(trainer, shell), allow_stop=True, allow_others=True))
            assert isinstance(told, Refusal)
            assert "is in the foreground of a terminal" in told.reason
        finally:
            outer.kill()


@root
def test_pids_of_another_namespaces_proc_are_refused(state: Path) -> None:
    """A container with the host's /proc: the pids there are other processes to its system calls."""
    code = (
        "from gputop.prove.change import Case, Plan, TargetProcess\nfrom gputop.prove.guardian import Guard\n"
        "from gputop.prove.interventions import plan\none = TargetProcess(1, 1, 'it')\n"
        "print(plan(Case('cpu-contention', one, (one,), (), (one,))).reason)\nGuard(Plan('nice', 'it', (), True)).__enter__()"
    )
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=ROOT)
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.startswith("/proc is not that of gputop's pid namespace")
    assert "OSError: no experiment: /proc is not that of gputop's pid namespace" in done.stderr
    assert not state.exists()


def test_a_journal_without_a_change_is_none(state: Path) -> None:
    """gputop was killed before its guardian had started."""
    os.close(create("it").fd)
    assert leftovers() == []
    assert not os.listdir(state)


def test_a_rank_of_the_same_training_is_not_put_aside() -> None:
    with running() as trainer, running() as slow:
        made = plan(case(trainer, slow, cause="straggler-rank"))
        assert isinstance(made, Refusal)
        assert "is a rank of the same training" in made.reason
        assert isinstance(plan(case(trainer, replace(slow, name="hog"), cause="straggler-rank")), Plan)


def test_a_journal_of_an_earlier_boot_is_moot(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as hog:
        with monkeypatch.context() as patch:
            patch.setattr("gputop.prove.journal.boot_id", lambda: "another")
            journal = create("it")
        journal.append([record_of(hog, "nice", "3", "0")])
        os.close(journal.fd)
        assert leftovers() == []
        assert not os.listdir(state)
        assert os.getpriority(os.PRIO_PROCESS, hog.pid) == 0


@root
def test_a_journal_of_another_user_is_not_applied() -> None:
    with running() as hog:
        journal = create("it")
        journal.append([record_of(hog, "nice", "3", "0")])
        os.close(journal.fd)
        os.chown(journal.path, 65534, 65534)
        (left,) = leftovers()
        assert "not written by its user alone" in left.problem
        undo_leftovers()
        assert os.getpriority(os.PRIO_PROCESS, hog.pid) == 0
