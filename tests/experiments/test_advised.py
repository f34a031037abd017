"""`x` on the screen: what a fix's command changes, on own processes, and that it is undone, or stays by `k`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from gputop.findings.verdict import Fix, Verdict
from gputop.prove import running, suspect
from gputop.prove.advised import plan_of
from gputop.prove.change import IDLE, Case, Change, Plan, Refusal, TargetProcess
from gputop.prove.guardian import Guard
from gputop.prove.processes import read_process
from gputop.prove.scene import may_raise
from gputop.prove.trial import JobSample, TrialSettings
from gputop.stream.offer import Offer
from gputop.tui.box import ConfirmScreen
from gputop.tui.prove_box import ProveScreen
from tests.tui import scene
from tests.tui.conftest import MakeApp, make_app
from tests.tui.test_dashboard import part
from tests.wait import PATIENCE_S, until

__all__ = ["make_app"]
MAY_RAISE = pytest.mark.skipif(not may_raise(os.getpid(), 0), reason="only root can put a priority back")
WAITS = round(PATIENCE_S / 0.02)  # looks of 0.02 s at a screen


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
    assert Offer(Fix("", command.replace("{}", str(hog))), Verdict(), 0).is_for_a_key, "the screen names x for what it can do"
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


@MAY_RAISE
@pytest.mark.parametrize(("keys", "stays"), [("", False), ("k", True), ("ku", False)])
async def test_p_tries_it_on_a_real_process_and_k_keeps_it(
    make_app: MakeApp, hog: int, monkeypatch: pytest.MonkeyPatch, keys: str, stays: bool
) -> None:
    was, own = state(hog), TargetProcess(hog, read_process(hog).start_ticks, "sleep")
    seen = set[int]()

    def samples(screen: ProveScreen, *_: object) -> Iterator[JobSample]:
        """A job that is fast as long as the process yields."""
        while not screen._over.is_set():
            policy = os.sched_getscheduler(hog)
            seen.add(policy)
            yield JobSample(time.monotonic_ns(), work_pct=90.0 if policy == os.SCHED_IDLE else 30.0)
            time.sleep(0.01)  # the pace of the samples

    planned = Plan("idle-priority", f"sleep ({hog}) to idle priority", (Change("policy", IDLE, own),), True)
    monkeypatch.setattr(running, "planned_for", lambda _case: planned)
    monkeypatch.setattr(suspect, "settings_of", lambda *_: TrialSettings(seconds=0.3, settle_s=0.05))
    monkeypatch.setattr(ProveScreen, "_samples", samples)
    session = scene.session()
    info, sample = session.board.infos[scene.HOG], session.board.procs[scene.HOG]
    session.board.infos[hog], session.board.procs[hog] = replace(info, pid=hog, start_ticks=own.start_ticks), replace(sample, pid=hog)
    app = make_app(session)
    async with app.run_test(size=(120, 35)) as pilot:

        async def waits(is_so: Callable[[], bool]) -> None:
            for _ in range(WAITS * 3):
                await pilot.pause(0.02)
                if is_so():
                    return
            raise AssertionError(box().page.text)

        def box() -> ProveScreen:
            return next(one for one in app.screen_stack if isinstance(one, ProveScreen))

        await pilot.press("p")
        await waits(lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.pause()
        await pilot.press("y")
        await waits(lambda: "[k] keep it" in box().page.text)
        assert "✓ PROVED" in box().page.text
        assert "90 % GPU work" in box().page.text
        assert seen == {was[0], os.SCHED_IDLE}
        assert state(hog) == was
        fixing = app.context.fixing
        assert fixing is not None
        for key in keys:
            await pilot.press(key)
            sign = "[u] undo" if key == "k" else "[k] keep it"
            await waits(lambda sign=sign: not fixing.is_busy and sign in box().page.text)  # type: ignore[misc]
            assert (fixing.applied is not None) == (key == "k")
            assert (state(hog)[0] == os.SCHED_IDLE) == (key == "k")
        if stays:
            assert fixing.applied is not None
            assert fixing.applied.before.work_pct == pytest.approx(30.0)
        await pilot.press("escape")
        await pilot.pause()
        assert (state(hog) == was) != stays
    assert (state(hog) == was) != stays


@MAY_RAISE
async def test_esc_in_the_middle_leaves_everything_as_it_was(make_app: MakeApp, hog: int, monkeypatch: pytest.MonkeyPatch) -> None:
    was, own = state(hog), TargetProcess(hog, read_process(hog).start_ticks, "sleep")

    def samples(screen: ProveScreen, *_: object) -> Iterator[JobSample]:
        while not screen._over.is_set():
            yield JobSample(time.monotonic_ns(), work_pct=50.0)
            time.sleep(0.01)  # the pace of the samples

    planned = Plan("idle-priority", f"sleep ({hog}) to idle priority", (Change("policy", IDLE, own),), True)
    monkeypatch.setattr(running, "planned_for", lambda _case: planned)
    monkeypatch.setattr(ProveScreen, "_samples", samples)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p")
        for _ in range(WAITS):
            await pilot.pause(0.02)
            if isinstance(app.screen, ConfirmScreen):
                break
        await pilot.pause()
        await pilot.press("y")
        for _ in range(WAITS):
            await pilot.pause(0.02)
            if state(hog)[0] == os.SCHED_IDLE:
                break
        assert state(hog)[0] == os.SCHED_IDLE
        await pilot.press("escape")
        for _ in range(WAITS):
            await pilot.pause(0.02)
            if state(hog) == was:
                break
        assert state(hog) == was
        assert not any(isinstance(one, ProveScreen) for one in app.screen_stack)


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
    # The lock is the host's: another test's fix may be on.
    until(lambda: subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout == "9\n")
    until(lambda: state(hog) == was)
