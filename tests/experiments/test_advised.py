"""`x` on the screen: what a fix's command changes, on own processes, and that it is undone, or stays by `k`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from gputop.findings.verdict import Fix
from gputop.prove.advised import plan_of
from gputop.prove.change import Case, Plan, Refusal, TargetProcess
from gputop.prove.guardian import Guard
from gputop.prove.processes import read_process
from gputop.prove.scene import may_raise
from gputop.stream.offer import Offer
from gputop.tui.box import ConfirmScreen
from tests.tui import scene
from tests.tui.conftest import MakeApp, make_app
from tests.tui.test_dashboard import part
from tests.wait import until

__all__ = ["make_app"]
MAY_RAISE = pytest.mark.skipif(not may_raise(os.getpid(), 0), reason="only root can put a priority back")
WAITS = 500  # looks of 0.02 s at a screen: ten seconds


@pytest.fixture
def hog() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def case(pid: int) -> Case:
    own = TargetProcess(pid, read_process(pid).start_ticks, "sleep")
    trainer = TargetProcess(1 << 22, 1, "train.py")
    return Case("cpu-contention", trainer, (trainer,), (), (own,))


def state(pid: int) -> tuple[object, ...]:
    return os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid), sorted(os.sched_getaffinity(pid))


@MAY_RAISE
@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("chrt --idle --all-tasks --pid 0 {}", lambda was: (os.SCHED_IDLE, *was[1:])),
        ("sudo sh -c 'chrt --idle --all-tasks --pid 0 {}'", lambda was: (os.SCHED_IDLE, *was[1:])),
        ("for pid in {}; do chrt --idle --all-tasks --pid 0 $pid; done", lambda was: (os.SCHED_IDLE, *was[1:])),
        ("renice -n 7 -p {}", lambda was: (was[0], 7, was[2])),
        ("taskset -apc 0 {}", lambda was: (*was[:2], [0])),
        ("taskset -apc 0 {}; renice -n 3 -p {}", lambda was: (was[0], 3, [0])),
    ],
)
def test_a_command_is_done_and_undone_exactly(hog: int, command: str, changed: object) -> None:
    was = state(hog)
    planned = plan_of(command.replace("{}", str(hog)), case(hog), {hog: read_process(hog).start_ticks})
    assert isinstance(planned, Plan), planned
    assert [one.target.pid for one in planned.reached] == [hog]
    with Guard(planned, agreed=True) as guard:
        guard.on()
        assert state(hog) == changed(was)  # type: ignore[operator]
    assert state(hog) == was


@pytest.mark.parametrize(
    "command",
    ["DataLoader(num_workers=4)", "export OMP_NUM_THREADS=1", "kill {}", "taskset -apc 0 $(pidof sshd)", "rm -rf /",
     "echo 1 > /proc/sys/vm/drop_caches", "chrt --fifo 9 {}",
     "echo 5 > /sys/fs/cgroup/cpu/../../../../etc/cpu.shares", "renice -n 7 -p {}; reboot", "chrt --idle --all-tasks --pid 0 1",
    ],
)  # fmt: skip
def test_what_is_no_setting_of_a_process_is_left_to_people(hog: int, command: str) -> None:
    was = state(hog)
    assert isinstance(plan_of(command.replace("{}", str(hog)), case(hog), {}), Refusal)
    assert state(hog) == was


def test_a_pid_that_was_used_again_is_not_changed(hog: int) -> None:
    found = plan_of(f"renice -n 7 -p {hog}", case(hog), {hog: read_process(hog).start_ticks - 1})
    assert isinstance(found, Refusal)
    assert "has ended" in found.reason


@MAY_RAISE
@pytest.mark.parametrize(("keys", "stays"), [("u", False), ("", False), ("k", True)])
async def test_x_asks_applies_and_puts_back_unless_k_keeps_it(make_app: MakeApp, hog: int, keys: str, stays: bool) -> None:
    was, session = state(hog), scene.session()
    info, sample = session.board.infos[scene.HOG], session.board.procs[scene.HOG]
    ticks = read_process(hog).start_ticks
    session.board.infos[hog], session.board.procs[hog] = replace(info, pid=hog, start_ticks=ticks), replace(sample, pid=hog)
    fix = Fix("Let it yield", f"chrt --idle --all-tasks --pid 0 {hog}")
    session.offers.append((session.now_ns, Offer(fix, session.engine.verdict, session.now_ns, ((hog, ticks),))))
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert "[x] do it" in part(app, "verdict")[2]
        await pilot.press("x")
        for _ in range(WAITS):
            await pilot.pause(0.02)
            if isinstance(app.screen, ConfirmScreen):
                break
        assert isinstance(app.screen, ConfirmScreen)
        assert app.screen.names[0] == fix.command
        assert any(f"({hog})" in name for name in app.screen.names[1:])
        assert state(hog) == was
        await pilot.pause()
        await pilot.press("y")
        for _ in range(WAITS):
            await pilot.pause(0.02)
            if app.context.fixing is not None and app.context.fixing.applied is not None and not app.context.fixing.is_busy:
                break
        assert state(hog)[0] == os.SCHED_IDLE
        app.screen_stack[0].drawing.draw_all()  # type: ignore[attr-defined]
        assert "[u] undo" in part(app, "verdict")[2]
        for key in keys:
            await pilot.press(key)
        for _ in range(WAITS):
            await pilot.pause(0.02)
            if keys != "u" or state(hog) == was:
                break
        assert (state(hog) == was) == (keys == "u")
    assert (state(hog) == was) != stays


async def test_readonly_applies_nothing(make_app: MakeApp, hog: int) -> None:
    was, app = state(hog), make_app(readonly=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert "[x]" not in part(app, "verdict")[2]
        await pilot.press("x")
        await pilot.pause()
        assert "--readonly" in part(app, "keys")[0]
        assert not isinstance(app.screen, ConfirmScreen)
    assert state(hog) == was


KILLED = """
import os, signal, sys
from gputop.prove.applying import AppliedFix
from gputop.prove.change import Change, Plan, TargetProcess
from gputop.stream.session import Session
own = TargetProcess(int(sys.argv[1]), int(sys.argv[2]), "sleep")
AppliedFix(Plan("advised", "renice", (Change("nice", "9", own),), True), own).begin(Session())
print(os.getpriority(os.PRIO_PROCESS, own.pid), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@MAY_RAISE
def test_a_killed_gputop_leaves_nothing_applied(hog: int) -> None:
    was = state(hog)
    words = [sys.executable, "-c", KILLED, str(hog), str(read_process(hog).start_ticks)]
    assert subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout == "9\n"
    until(lambda: state(hog) == was)
