"""The fix on the line holds still, and goes where it is plainly wrong."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputop.findings.verdict import Culprit, Fix, Incident, Verdict
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, ProcInfo, ProcSample
from gputop.stream.offer import HOLD_NS, Offer, Offering
from tests.tui import scene

HOGS = (501, 502, 503)
T_NS = 100 * SECOND_NS


def board(*pids: int, ticks: int = 7) -> Board:
    found = Board()
    for pid in pids:
        found.infos[pid] = ProcInfo(pid, ticks, 1, 1000, "ada", "hog", ["hog"])
        found.procs[pid] = ProcSample(pid, ticks, T_NS, "R", 0, 0, 0, 1)
    return found


def verdict(*pids: int, cause: str = "cpu-contention", severity: str = "high", look: bool = False) -> Verdict:
    command = f"{'ls -l /proc' if look else 'chrt --idle --all-tasks --pid 0'} {' '.join(map(str, pids))}"
    culprits = tuple(Culprit(pid, "hog", 1.0) for pid in pids)
    return Verdict("input-bound", cause, severity=severity, trainer_pid=1, fixes=(Fix("", command, look),), culprits=culprits)


def incident(cause: str, end_ns: int | None = None) -> Incident:
    return Incident(1, 0, end_ns, "input-bound", cause, "high", 1.0, 1, 0, 1.0, "", "", [], [], [], [])


OPEN = [incident("cpu-contention"), incident("h2d-transfer")]
OTHER = verdict(502, cause="h2d-transfer")
HEALTHY = Verdict("healthy", severity="info", trainer_pid=1)


@pytest.mark.parametrize("after_s", [0.5, 3.0, 9.9])
@pytest.mark.parametrize("new", [verdict(502), verdict(503, 501), OTHER, verdict(501, look=True), Verdict()])
def test_it_holds_still_whatever_is_named_next(new: Verdict, after_s: float) -> None:
    offering = Offering()
    first = offering.take(T_NS, verdict(501), board(*HOGS), OPEN)
    assert first is not None
    assert offering.take(T_NS + round(after_s * SECOND_NS), new, board(*HOGS), OPEN) is first


@pytest.mark.parametrize(
    ("new", "living", "ticks", "incidents"),
    [
        (verdict(502), (502, 503), 7, OPEN),
        (verdict(502), HOGS, 8, OPEN),
        (OTHER, HOGS, 7, [incident("cpu-contention", end_ns=5), OPEN[1]]),
        (HEALTHY, HOGS, 7, OPEN),
    ],
    ids=["its process ended", "its pid was used again", "its cause ended", "all is well again"],
)
def test_it_goes_at_once_where_it_is_plainly_wrong(new: Verdict, living: tuple[int, ...], ticks: int, incidents: list[Incident]) -> None:
    offering = Offering()
    offering.take(T_NS, verdict(501), board(*HOGS), OPEN)
    now = offering.take(T_NS + SECOND_NS, new, board(*living, ticks=ticks), incidents)
    assert (now.fix if now else None) == next(iter(new.fixes), None)


def test_a_worse_trouble_is_not_kept_waiting() -> None:
    offering = Offering()
    offering.take(T_NS, verdict(501, severity="low"), board(*HOGS), OPEN)
    now = offering.take(T_NS + SECOND_NS, OTHER, board(*HOGS), OPEN)
    assert now is not None
    assert now.verdict is OTHER


def test_after_its_time_what_is_still_advised_stays_and_what_is_not_goes() -> None:
    offering, both = Offering(), Verdict(
        "input-bound", "cpu-contention", severity="high", trainer_pid=1, fixes=(*verdict(502).fixes, *verdict(501).fixes),
        culprits=(*verdict(502).culprits, *verdict(501).culprits),
    )  # fmt: skip
    first = offering.take(T_NS, verdict(501), board(*HOGS), OPEN)
    assert offering.take(T_NS + 2 * HOLD_NS, both, board(*HOGS), OPEN) is first
    now = offering.take(T_NS + 3 * HOLD_NS, verdict(503), board(*HOGS), OPEN)
    assert now is not None
    assert "503" in now.command


def test_a_look_gives_way_to_a_fix_after_its_time() -> None:
    offering = Offering()
    look = offering.take(T_NS, verdict(501, look=True), board(*HOGS), OPEN)
    assert look is not None
    assert look.fix.look
    fix = Verdict(
        "input-bound", "cpu-contention", severity="high", trainer_pid=1, fixes=(*verdict(501, look=True).fixes, *verdict(502).fixes)
    )
    now = offering.take(T_NS + HOLD_NS, fix, board(*HOGS), OPEN)
    assert now is not None
    assert not now.fix.look


def test_a_session_remembers_what_was_offered_and_leaves_its_verdicts_alone() -> None:
    session = scene.session(150)
    offer = session.offer_at(None)
    assert offer is not None
    assert offer.command == session.engine.verdict.fixes[0].command
    assert session.offer_at(scene.START_NS) is None
    assert session.offer_at(session.now_ns) is offer


def test_a_demo_offers_what_it_may_touch_and_that_at_once() -> None:
    """Its own processes are started by what started its trainer."""
    shown = board(1, *HOGS)
    shown.infos[1] = ProcInfo(1, 7, 900, 1000, "ada", "python", ["train.py"])
    shown.infos[501] = ProcInfo(501, 7, 77, 1000, "ada", "hog", ["hog"])
    shown.infos[502] = ProcInfo(502, 7, 503, 1000, "ada", "hog", ["hog"])
    shown.infos[503] = ProcInfo(503, 7, 900, 1000, "ada", "hog", ["hog"])
    foreign, own = verdict(501).fixes[0], verdict(502).fixes[0]
    offering, real = Offering(is_staged=True), Offering()
    told = replace(verdict(501, 502, 503), fixes=(foreign, own))
    for one in (offering, real):
        offered = one.take(T_NS, replace(told, fixes=(foreign,)), shown, OPEN)
        assert (offered is None) == (one is offering), "what it may not touch is not offered by a demo"
    after = [one.take(T_NS + SECOND_NS, told, shown, OPEN) for one in (offering, real)]
    assert [one.fix if one else None for one in after] == [own, foreign]


@pytest.mark.parametrize("command", ["DataLoader(..., num_workers=4)", "export OMP_NUM_THREADS=1", "kill 12", "torchrun", ""])
def test_what_a_person_has_to_do_is_for_no_key(command: str) -> None:
    assert not Offer(Fix("", command), Verdict(), 0).is_for_a_key
    assert not Offer(Fix("", "taskset -pc 12", look=True), Verdict(), 0).is_for_a_key


@pytest.mark.parametrize(("command", "is_own"), [
    ("echo 2 > /sys/fs/cgroup/cpu/other/cpu.shares", False),
    ("systemctl set-property --runtime other.service CPUWeight=1", False),
    ("echo '254:0 0' > /sys/fs/cgroup/blkio/gputop-demo-900/blkio.throttle.read_bps_device", True),
    ("echo '254:0 0' > /sys/fs/cgroup/blkio/gputop-demo-9/blkio.throttle.read_bps_device", False),
    ("DataLoader(..., num_workers=4)", True),
    ("echo 19 > /proc/4242/autogroup", False),
    ("chrt --idle --all-tasks --pid 0 4242", False),
    ("for pid in 502 4242; do chrt --idle --all-tasks --pid 0 $pid; done", False),
    ("for p in 1 502; do taskset -apc 0-63 $p; done", True),
    ("taskset -apc 0-1 502", True),
    ("renice -n 19 -p 502", True),
    ("kill -CONT 502 4242", False),
])  # fmt: skip
def test_a_demo_touches_what_is_its_own(command: str, is_own: bool) -> None:
    shown = board(1, *HOGS)
    shown.infos[1] = ProcInfo(1, 7, 900, 1000, "ada", "python", ["train.py"])
    shown.infos[502] = ProcInfo(502, 7, 900, 1000, "ada", "hog", ["hog"])
    shown.infos |= {pid: ProcInfo(pid, 7, 2, 0, "root", "init", ["init"]) for pid in (0, 19, 63)}  # no pid of a command
    told = replace(verdict(502), fixes=(Fix("first", command), *verdict(502).fixes))
    offered = Offering(is_staged=True).take(T_NS, told, shown, OPEN)
    assert offered is not None
    assert (offered.command == command) == is_own


def test_advice_that_its_own_cause_withdraws_for_a_setting_goes_at_once() -> None:
    """Under a limit that has just been read more reads at once are no faster."""
    code, lift = Fix("More", "DataLoader(..., num_workers=4)"), Fix("Lift", "echo '254:0 0' > /sys/fs/cgroup/blkio/a/x")
    shown, told = board(1), replace(verdict(cause="disk-io"), fixes=(code,))
    for now, expected in (((lift,), lift), ((code, lift), code), ((Fix("Other", "torchrun"),), code)):
        offering = Offering()
        offering.take(T_NS, told, shown, OPEN)
        offered = offering.take(T_NS + SECOND_NS, replace(told, fixes=now), shown, OPEN)
        assert offered is not None
        assert offered.fix == expected
    offering = Offering()
    offering.take(T_NS, replace(told, fixes=(lift,)), shown, OPEN)
    offered = offering.take(T_NS + SECOND_NS, replace(told, fixes=(Fix("Lift", "echo '254:0 9' > /sys/fs/cgroup/blkio/a/x"),)), shown, OPEN)
    assert offered is not None
    assert offered.fix == lift, "what a key does holds still"
