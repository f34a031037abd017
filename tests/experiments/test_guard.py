"""An experiment is undone exactly, whoever dies."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gputop.commands.prove import _undo
from gputop.prove import guardian
from gputop.prove.change import FILE, IDLE, STOPPED, Change, Plan, TargetProcess
from gputop.prove.fuse import Fuse
from gputop.prove.guardian import Guard
from gputop.prove.interventions import plan
from gputop.prove.journal import leftovers, undo_leftovers
from gputop.prove.processes import read_process, read_thread
from tests.experiments.processes import (
    BUILD,
    ORPHANS,
    STARTS_A_THREAD,
    THREADS,
    case,
    group_members,
    holder,
    running,
    settings,
    started,
    target,
    threads,
)  # fmt: skip
from tests.wait import until


def _idle(*targets: TargetProcess) -> Plan:
    changes = tuple(Change("policy", IDLE, one) for one in targets)
    return Plan("idle-priority", f"{targets[0]} to idle priority", changes, may_keep=True)


def _is_idle(pid: int) -> bool:
    return os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_IDLE


def _idle_members(group: int) -> int:
    """How many threads of a process group have SCHED_IDLE; some may end meanwhile."""
    return sum(values[0] == os.SCHED_IDLE for pid in group_members(group) for values in settings(pid).values())


def _guardian_of(pid: int) -> int:
    children = [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_guardian_of(int(name), pid)]
    assert len(children) == 1
    return children[0]


def _is_guardian_of(pid: int, parent: int) -> bool:
    try:
        return read_process(pid).ppid == parent and b"gputop.prove.guardian" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_each_thread_gets_its_own_values_back() -> None:
    with running() as trainer, running(THREADS) as hog:
        before = settings(hog.pid)
        assert len({values[:3] for values in before.values()}) == 4
        made = plan(case(trainer, hog))
        assert isinstance(made, Plan)
        with Guard(made) as guard:
            for _ in range(2):
                guard.on()
                assert all(map(_is_idle, before))
                guard.off()
                assert settings(hog.pid) == before
            guard.on()
        assert settings(hog.pid) == before
    assert leftovers() == []


def test_threads_and_children_that_begin_meanwhile_are_put_back() -> None:
    with running() as trainer, started(STARTS_A_THREAD) as child, running(BUILD) as build, running(ORPHANS) as orphans:
        made = plan(case(trainer, target(child.pid), build, orphans))
        assert isinstance(made, Plan)
        with Guard(made) as guard:
            guard.on()
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
            until(lambda: _idle_members(build.pid) > 3)
            until(lambda: _idle_members(orphans.pid) > 3)
            guard.off()
            for group in (child.pid, build.pid, orphans.pid):
                policies = {values[0] for pid in group_members(group) for values in settings(pid).values()}
                assert policies == {os.SCHED_OTHER}, group


@pytest.mark.usefixtures("files_for_groups")
def test_a_group_made_anew_between_two_arms_is_put_back_too(tmp_path: Path) -> None:
    file = tmp_path / "group" / "cpu.weight"
    file.parent.mkdir()
    file.write_text("50")
    (tmp_path / "group" / "cgroup.procs").touch()
    with Guard(Plan("cpu-weight", "it", (Change(FILE, "10", path=str(file)),), True)) as guard:
        guard.on()
        assert file.read_text() == "10"
        guard.off()
        file.parent.rename(tmp_path / "gone")
        file.parent.mkdir()
        file.write_text("50")
        (tmp_path / "group" / "cgroup.procs").touch()
        guard.on()
        assert file.read_text() == "10"
        guard.off()
        assert file.read_text() == "50"


def test_keep_leaves_it_and_ends_the_guardian() -> None:
    with running() as hog:
        guard = Guard(_idle(hog)).__enter__()
        guard.keep()
        guard.close()
        assert _is_idle(hog.pid)
        assert leftovers() == []
        until(lambda: not [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _is_guardian_of(pid, os.getpid())])


def test_what_ended_before_is_said() -> None:
    with running() as hog:
        made = _idle(hog)
    with Guard(made) as guard, pytest.raises(OSError, match="it has ended"):
        guard.on()


def test_the_guardian_undoes_after_kill_9_of_gputop(state: Path) -> None:
    with running(THREADS) as hog:
        before = settings(hog.pid)
        with holder(_idle(hog)) as gputop:
            assert _is_idle(hog.pid)
            gputop.kill()
            until(lambda: settings(hog.pid) == before)
        until(lambda: not list(state.rglob("*.journal")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_guardian_ignores_signals(number: int) -> None:
    with running() as hog, holder(_idle(hog)) as gputop:
        watching = _guardian_of(gputop.pid)
        os.kill(watching, number)
        gputop.kill()
        until(lambda: not _is_idle(hog.pid))


def test_gputop_undoes_after_kill_9_of_the_guardian() -> None:
    with running() as hog, Guard(_idle(hog)) as guard:
        guard.on()
        assert _is_idle(hog.pid)
        os.kill(_guardian_of(os.getpid()), signal.SIGKILL)
        until(lambda: not _is_idle(hog.pid))
        until(lambda: guard.lost)
        with pytest.raises(OSError, match="guardian process has ended; all is put back"):
            guard.on()
    assert leftovers() == []


def test_what_both_left_behind_is_undone_later() -> None:
    with running(THREADS) as hog:
        before = settings(hog.pid)
        with holder(_idle(hog)) as gputop:
            watching = _guardian_of(gputop.pid)
            os.kill(gputop.pid, signal.SIGSTOP)
            until(lambda: {read_thread(gputop.pid, tid).state for tid in threads(gputop.pid)} == {"T"})
            os.kill(watching, signal.SIGKILL)
            gputop.kill()
            gputop.wait()
        until(lambda: [left.says for left in leftovers()] == [f"{hog} to idle priority"])
        assert _is_idle(hog.pid)
        with pytest.raises(OSError, match="gputop prove --undo"):
            Guard(_idle(hog)).__enter__()
        assert undo_leftovers() == [f"{hog} to idle priority: put back"]
        assert settings(hog.pid) == before
        assert leftovers() == []
        assert undo_leftovers() == []


def test_a_guardian_that_was_stopped_is_woken(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as hog:
        with holder(_idle(hog)) as gputop:
            watching = _guardian_of(gputop.pid)
            os.kill(watching, signal.SIGSTOP)
            until(lambda: read_process(watching).state == "T")
            gputop.kill()
            gputop.wait()
        assert _is_idle(hog.pid)
        assert _undo() == 0
        assert capsys.readouterr().out == f"a guardian process ({watching}) had been stopped: put back\n"
        assert not _is_idle(hog.pid)
        assert _undo() == 0
        assert capsys.readouterr().out == "nothing to put back\n"
        with Guard(_idle(hog)):
            assert _undo() == 0
            assert "is under way: it puts everything back itself" in capsys.readouterr().out


def test_a_gputop_that_says_nothing_is_taken_for_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "SILENT_S", 0.5)
    with running() as hog, Guard(_idle(hog)) as guard:  # it speaks each 15 s
        guard.on()
        until(lambda: not _is_idle(hog.pid))
        until(lambda: guard.lost)


def test_a_change_may_be_on_for_as_long_as_the_experiment_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "SILENT_S", 1.0)
    monkeypatch.setattr(guardian, "SPEAK_S", 0.1)
    with running() as hog:
        assert any(_stays_on(hog) for _ in range(10)), "this machine stands still for half a second at a time"


def _stays_on(hog: TargetProcess) -> bool:
    """Whether this process had its CPU all the time; if so the change must have been on."""
    with Guard(_idle(hog)) as guard:
        guard.on()
        begun = last = time.monotonic()
        while time.monotonic() - begun < 2.0:
            guard.beat()
            time.sleep(0.02)
            if time.monotonic() - last > 0.5:
                return False
            last = time.monotonic()
        assert _is_idle(hog.pid)
        assert not guard.lost
    return True


def test_a_change_is_undone_where_gputop_hangs_at_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-S, or an ssh connection that has died: its threads go on, the experiment does not."""
    monkeypatch.setattr(guardian, "SILENT_S", 0.5)
    monkeypatch.setattr(guardian, "SPEAK_S", 0.1)
    with running() as hog:
        with Guard(_idle(hog)) as guard:
            guard.on()
            until(lambda: not _is_idle(hog.pid))
            until(lambda: guard.lost)
            os.sched_setscheduler(hog.pid, os.SCHED_IDLE, os.sched_param(0))  # later, by somebody else
        assert _is_idle(hog.pid)


def test_gputop_undoes_though_somebody_spoils_the_journal(state: Path) -> None:
    with running() as hog, Guard(_idle(hog)) as guard:
        guard.on()
        (journal,) = state.rglob("*.journal")
        journal.write_bytes(b"")
        guard.off()
        assert not _is_idle(hog.pid)


def test_the_guardian_undoes_though_somebody_removed_the_journal(state: Path) -> None:
    with running() as hog, holder(_idle(hog)) as gputop:
        (journal,) = state.rglob("*.journal")
        journal.unlink()
        gputop.kill()
        until(lambda: not _is_idle(hog.pid))


def test_what_somebody_else_changed_meanwhile_is_theirs() -> None:
    with running() as hog, Guard(_idle(hog)) as guard:
        guard.on()
        os.sched_setscheduler(hog.pid, os.SCHED_BATCH, os.sched_param(0))
        guard.off()
        assert os.sched_getscheduler(hog.pid) == os.SCHED_BATCH


@contextmanager
def _without_files() -> Iterator[None]:
    """No file can be opened meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_who_cannot_be_looked_at_is_not_taken_for_gone() -> None:
    with running() as hog, Guard(_idle(hog)) as guard:
        guard.on()
        with _without_files():
            with pytest.raises(OSError, match="not put back yet"):
                guard.off()
            assert _is_idle(hog.pid)
        guard.off()
        assert not _is_idle(hog.pid)


def test_a_fuse_that_cannot_hold_them_all_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "Fuse", _fuse_with_few_files)
    with ExitStack() as stack:
        hogs = [stack.enter_context(running()) for _ in range(3)]
        plan = Plan("stop", "all stopped", tuple(Change("state", STOPPED, one) for one in hogs), False, 1.0)
        with Guard(plan) as guard, pytest.raises(OSError, match="can hold no more"):
            guard.on()
        assert {read_process(one.pid).state for one in hogs} == {"S"}


def _fuse_with_few_files() -> Fuse:
    fuse = Fuse()
    resource.prlimit(fuse._child.pid, resource.RLIMIT_NOFILE, (6, 6))
    return fuse


def test_an_experiment_is_seen_whatever_the_environment_is(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    with running() as hog, Guard(_idle(hog)):
        for name in ("TMPDIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME"):
            monkeypatch.setenv(name, str(tmp_path / "other"))
        with pytest.raises(OSError, match="another one is under way"):
            Guard(_idle(hog)).__enter__()
    with running() as hog, Guard(_idle(hog)):
        assert len(list(state.glob("*.journal"))) == 1


def test_only_one_experiment_at_a_time() -> None:
    with running() as hog, Guard(_idle(hog)), pytest.raises(OSError, match="another one is under way"):
        Guard(_idle(hog)).__enter__()
    with running() as hog, Guard(_idle(hog)):
        pass


def test_a_pulse_stops_and_the_fuse_lets_go_on_whoever_dies() -> None:
    with running(BUILD) as hog:
        made = Plan("stop", f"{hog} stopped", (Change("state", STOPPED, hog),), False, 1.0)
        with holder(made) as gputop:
            until(lambda: read_process(hog.pid).state == "T")
            watching = _guardian_of(gputop.pid)
            os.kill(watching, signal.SIGSTOP)  # it can do nothing any more
            gputop.kill()
            os.kill(watching, signal.SIGKILL)
            until(lambda: read_process(hog.pid).state != "T")
        until(lambda: bool(undo_leftovers()))
        assert leftovers() == []


def test_a_pulse_ends_with_off_and_leaves_the_stopped_stopped() -> None:
    with running() as hog, running() as resting:
        os.kill(resting.pid, signal.SIGSTOP)
        until(lambda: read_process(resting.pid).state == "T")
        with Guard(Plan("stop", "both stopped", tuple(Change("state", STOPPED, one) for one in (hog, resting)), False, 1.0)) as guard:
            guard.on()
            until(lambda: read_process(hog.pid).state == "T")
            guard.off()
            until(lambda: read_process(hog.pid).state != "T")
            assert read_process(resting.pid).state == "T"
        assert read_process(resting.pid).state == "T"


def test_others_need_an_answer() -> None:
    with running() as hog, pytest.raises(OSError, match="agree"):
        Guard(Plan("nice", "x", (), True, others=(hog,))).__enter__()


def test_no_guardian_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputop.system.program.argv_of", lambda *_words: ["/bin/false"])
    with running() as hog, pytest.raises(OSError, match="its guardian did not start"):
        Guard(_idle(hog)).__enter__()
    assert leftovers() == []


def test_a_guardian_costs_little() -> None:
    """It waits: no CPU time, and less memory than a screen."""
    with running() as hog, Guard(_idle(hog)) as guard:
        guard.on()
        pid = _guardian_of(os.getpid())
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert int(status["VmRSS"].split()[0]) < 40_000
