"""Links of a GPU that err: what is told of which, how severe it is, when it begins and ends, and when nothing is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputop.findings.trouble import notice
from gputop.findings.verdict import LINK_ERRORS, Incident
from gputop.model.gpu import NvLinkCounts
from tests.unit.diagnosis.scene import Scene, training

LINKS = 18
EACH_S = 10  # the driver's counters are read so often


def machine(recoveries: int = 0) -> Scene:
    """A healthy training on GPU 0, whose links have been trained again ``recoveries`` times before."""
    scene = training(run=0.3)
    scene.gpus[0] |= {"pcie_replays": 4, "nvlinks": links(recoveries=recoveries)}
    return scene.play(6, 1.0)


def links(bad: tuple[int, ...] = tuple(range(LINKS)), **counts: int) -> list[NvLinkCounts]:
    """All links; the bad ones have counted so much, the others nothing."""
    nothing = dict.fromkeys(("replays", "recoveries", "crc_errors"), 0)
    return [NvLinkCounts(link, **(nothing | counts if link in bad else nothing)) for link in range(LINKS)]


def live(scene: Scene, seconds: int, read: Callable[[int], dict[str, object]]) -> Scene:
    """Let time pass; ``read`` returns the counters after so many seconds, which are read now and then."""
    for second in range(1, seconds + 1):
        scene.gpus[0] |= read(second) if second % EACH_S == 0 else dict.fromkeys(("nvlinks", "pcie_replays"))
        scene.play(1, 1.0)
    return scene


def trained_again(scene: Scene, seconds: int, link: int) -> Scene:
    """A link is trained again twice from one reading to the next."""
    return live(scene, seconds, lambda second: {"nvlinks": links((link,), recoveries=second // 5)})


def told(scene: Scene) -> list[Incident]:
    return [one for one in scene.engine.incidents if one.cause == LINK_ERRORS]


def test_a_link_that_is_trained_again_is_named_with_gpu_rate_and_user() -> None:
    scene = trained_again(machine(), 64, link=14)
    [one] = told(scene)
    assert (one.gpu, one.severity, one.end_ns, one.lost_s, one.trainer_pid) == (0, "medium", None, 0.0, None)
    assert one.headline == "NVLink 14 of GPU 0 is trained again 12.0 times a minute"
    assert {item.metric: item.value for item in one.evidence} == {"recoveries_per_min": pytest.approx(12.0)}
    assert [victim.pid for victim in one.victims] == [100]
    assert any(fix.command == "nvidia-smi nvlink -e -i 0" for fix in one.fixes)
    assert notice(scene.engine.incidents, scene.engine.verdict) == (one.headline, "medium")


def test_it_is_no_verdict_and_takes_no_gpu_time() -> None:
    found = trained_again(machine(), 40, link=14).engine.explain()
    assert found.verdict.cause == "none"
    assert LINK_ERRORS not in found.ledger.by_cause
    assert [one.cause for one in found.incidents] == [LINK_ERRORS]


def test_what_was_counted_before_is_no_incident() -> None:
    assert told(live(machine(505), 60, lambda _: {"nvlinks": links(recoveries=505), "pcie_replays": 4})) == []


def test_one_of_many_is_told_of_a_job_or_of_none() -> None:
    scene = machine().drop(100, 101, 102)
    scene.gpus[0]["pids"] = []
    [one] = told(trained_again(scene.play(10, 1.0), 30, link=2))
    assert (one.gpu, one.victims, one.severity) == (0, [], "medium")


@pytest.mark.parametrize(
    ("per_reading", "severity", "words"),
    [
        ({"replays": 1}, "", ""),
        ({"replays": 5}, "low", "NVLink 7 of GPU 0 sends 30 packets a minute again"),
        ({"crc_errors": 300}, "", ""),
        ({"crc_errors": 2000}, "medium", "NVLink 7 of GPU 0 gets 12000 packets a minute with a wrong checksum"),
        ({"failed_recoveries": 1, "recoveries": 3}, "medium", "NVLink 7 of GPU 0 fails to be trained again 6.0 times a minute"),
    ],
)
def test_how_severe_it_is_follows_from_the_rate(per_reading: dict[str, int], severity: str, words: str) -> None:
    def read(second: int) -> dict[str, object]:
        return {"nvlinks": links((7,), **{name: count * (second // EACH_S) for name, count in per_reading.items()})}

    before = {"nvlinks": links((7,), **dict.fromkeys(per_reading, 0))}
    scene = machine()
    scene.gpus[0] |= before
    found = told(live(scene.play(1, 1.0), 70, read))
    assert [(one.severity, one.headline) for one in found] == ([(severity, words)] if severity else [])


@pytest.mark.parametrize(("per_reading", "is_told"), [(1, False), (5, True)])
def test_a_pcie_link_that_sends_again_is_told_from_nine_a_minute(per_reading: int, is_told: bool) -> None:
    found = told(live(machine(), 70, lambda second: {"pcie_replays": 4 + per_reading * (second // EACH_S)}))
    assert [one.severity for one in found] == ["low"] * is_told
    assert all("PCIe link of GPU 0" in one.headline for one in found)


def test_it_ends_when_the_counter_rests_and_begins_anew() -> None:
    scene = trained_again(machine(), 30, link=14)
    [one] = told(scene)
    last_ns = scene.board.t_ns
    live(scene, 50, lambda _: {"nvlinks": links((14,), recoveries=6)})
    assert one.end_ns is None
    live(scene, 20, lambda _: {"nvlinks": links((14,), recoveries=6)})
    assert one.end_ns == last_ns
    live(scene, 20, lambda second: {"nvlinks": links((14,), recoveries=6 + second // 5)})
    assert [again.end_ns is None for again in told(scene)] == [False, True]


def test_a_driver_that_is_loaded_anew_counts_from_nothing() -> None:
    scene = live(machine(505), 20, lambda _: {"nvlinks": links(recoveries=505)})
    assert told(live(scene, 30, lambda _: {"nvlinks": links(), "pcie_replays": 0})) == []


def test_several_links_of_a_gpu_are_one_incident_that_names_the_worst() -> None:
    def read(second: int) -> dict[str, object]:
        each = {4: second // 10, 5: second // 5, 6: 0}
        return {"nvlinks": [NvLinkCounts(link, 0, count) for link, count in each.items()]}

    [one] = told(live(machine(), 60, read))
    assert one.headline.startswith("NVLink 5 of GPU 0")
    assert one.detail.endswith("beside it: 4")


def test_findings_begin_anew_and_the_link_errs_still() -> None:
    scene = trained_again(machine(), 30, link=14)
    scene.engine.begin()
    trained_again(scene, 40, link=14)
    assert len(told(scene)) == 1
