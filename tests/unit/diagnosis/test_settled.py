"""Jobs of which nothing moves are judged seldom, and at once when something moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputop.diagnosis import engine as engine_module
from gputop.diagnosis.facts.window import Window
from gputop.diagnosis.settled import Settled
from gputop.findings import policy
from tests.unit.diagnosis import causes
from tests.unit.diagnosis.scene import FUTEX, QUEUE, SLEEP, Proc, Scene, training
from tests.unit.diagnosis.test_engine import contended
from tests.unit.diagnosis.test_hangs import rest, steady, still

STEP_S = 0.5


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times of all judgements, ns."""
    times: list[int] = []
    facts = Window.facts

    def noted(self: Window, board: object) -> object:
        times.append(self.t_ns)
        return facts(self, board)  # type: ignore[arg-type]

    monkeypatch.setattr(Window, "facts", noted)
    return times


@pytest.mark.parametrize("make", [lambda: training(run=0.2), contended], ids=["healthy", "with a fault"])
def test_a_settled_job_is_judged_every_two_seconds(make: Callable[[], Scene], judged: list[int]):
    scene = make().play(12, STEP_S)
    judged.clear()
    scene.play(20, STEP_S)
    assert 9 <= len(judged) <= 11


def test_a_job_that_swings_between_two_loads_settles_too(judged: list[int]):
    scene = training(run=0.2)

    def swing(seconds: int) -> None:
        for i in range(seconds):
            scene.procs[100].run = 0.2 if i % 2 else 0.5
            scene.play(1, STEP_S)

    swing(30)
    judged.clear()
    swing(20)
    assert len(judged) <= 14


def make_contended(scene: Scene) -> None:
    sick = contended()
    scene.procs, scene.cpus, scene.cpu_busy = sick.procs, 2, [1.0, 1.0]
    scene.gpus[0]["util_pct"] = 20.0


def throttle(scene: Scene) -> None:
    scene.gpus[0] |= {"throttle_mask": 8, "sm_clock_mhz": 400}


def test_trouble_is_judged_with_the_next_feed(judged: list[int]):
    scene = training(run=0.2).play(20, STEP_S)
    make_contended(scene)
    judged.clear()
    scene.play(1, STEP_S)
    assert len(judged) == 2


@pytest.mark.parametrize("settled_s", [4, 20, 20.5, 21])
def test_a_settled_engine_names_a_cause_no_later(settled_s: float):
    scene = training(run=0.2).play(settled_s, STEP_S)
    make_contended(scene)
    waited_s = 0.0
    while scene.engine.verdict.cause != "cpu-contention" and waited_s < 10.0:
        scene.play(STEP_S, STEP_S)
        waited_s += STEP_S
    assert waited_s <= 2.5


def test_a_new_process_of_a_job_is_judged_at_once(judged: list[int]):
    scene = training(run=0.2).play(20, STEP_S)
    scene.add(Proc(109, ppid=100, comm="pt_data_worker", looks=[QUEUE]))
    judged.clear()
    scene.play(1.5, STEP_S)
    assert len(judged) >= 2  # roles are found once a second


@pytest.mark.parametrize(
    "make", [lambda: training(run=0.2), contended, causes.slow_transform], ids=["healthy", "cpu-contention", "slow-transform"]
)
def test_the_ledger_and_incidents_are_those_of_every_feed(make: Callable[[], Scene], monkeypatch: pytest.MonkeyPatch):
    seldom = make().play(30, STEP_S).engine
    monkeypatch.setattr(engine_module, "Settled", Always)
    always = make().play(30, STEP_S).engine
    (found, ledgers), (expected, whole) = seldom.settled(), always.settled()
    assert [(one.cause, one.severity, one.start_ns, one.end_ns, one.last_ns) for one in found] == [
        (one.cause, one.severity, one.start_ns, one.end_ns, one.last_ns) for one in expected
    ]
    assert [one.lost_s for one in found] == pytest.approx([one.lost_s for one in expected], rel=0.01)
    assert [culprit.cpu_s for one in found for culprit in one.culprits] == pytest.approx(
        [culprit.cpu_s for one in expected for culprit in one.culprits], rel=0.01
    )
    assert ledgers.keys() == whole.keys()
    for key, ledger in ledgers.items():
        assert ledger.gpu_total_s == pytest.approx(whole[key].gpu_total_s)
        assert ledger.gpu_lost_s == pytest.approx(whole[key].gpu_lost_s, rel=0.01)


class Always(Settled):
    """Never rests."""

    def rests(self, *_args: object) -> bool:
        return False


def test_a_settled_job_that_is_looked_at_seldom_is_judged_at_every_third_look(judged: list[int]):
    scene, pace_s = training(run=0.2), 4.0
    for _ in range(40):
        scene.board.fold(scene.next_frame(pace_s))
        scene.engine.feed(scene.board, int(pace_s * 1e9))
    assert 8 <= sum(t_ns > scene.board.t_ns - 100e9 for t_ns in judged) <= 10
    assert scene.engine.ledger.gpu_total_s >= 35 * pace_s  # what was not judged is counted all the same


def test_a_rest_ends_well_within_a_gap():
    """A longer one would empty the window."""
    assert min(policy.GAP_NS, policy.WINDOW_NS, policy.AWAY_NS) > policy.SELDOM_NS


def test_after_a_gap_each_feed_is_judged_again(judged: list[int]):
    """The window begins anew then, and is not full."""
    scene = training(run=0.2).play(20, STEP_S)
    scene.board.fold(scene.next_frame(policy.GAP_NS / 1e9 + 1))
    scene.engine.feed(scene.board)
    judged.clear()
    scene.play(4, STEP_S)
    assert len(judged) == 8


def crowd(util_pct: float) -> Scene:
    """Ten trainers on one GPU that do next to nothing: their work is no sign of life."""
    scene = Scene()
    scene.gpus[0] = {"util_pct": util_pct, "power_w": 300.0, "power_limit_w": 700.0, "pids": [*range(200, 210)]}
    for pid in range(200, 210):
        scene.add(Proc(pid, 10, run=0.002, looks=[SLEEP], switches=10, info={"uses_cuda": True}))
    return scene


def halted() -> Scene:
    """A job that has trained, of which nothing moves."""
    return rest(still(still(steady(), QUEUE, 101, 102), FUTEX, 100))


@pytest.mark.parametrize(
    ("make", "causes_told", "part"),
    [
        (lambda: crowd(97.0), {"none"}, 0.5),
        (lambda: crowd(60.0), {"none", "main-thread-preprocessing"}, 0.5),
        (halted, {"pause", "hung-worker"}, 1.0),
    ],
    ids=["GPU works", "GPU waits", "hang"],
)
def test_what_is_still_is_judged_seldom_and_a_hang_is_told_no_later(
    make: Callable[[], Scene], causes_told: set[str], part: float, judged: list[int], monkeypatch: pytest.MonkeyPatch
):
    """Time alone may make trouble of it, at certain moments: then it is judged."""

    def told() -> list[str]:
        scene = make()
        judged.clear()
        return [scene.play(STEP_S, STEP_S).engine.verdict.cause for _ in range(80)]

    seldom, judged_seldom = told(), len(judged)
    assert {*seldom} == causes_told
    monkeypatch.setattr(Settled, "rests", lambda *_: False)
    assert told() == seldom
    assert judged_seldom < part * len(judged)
