"""A PCIe link that was trained down, and what it costs the job that copies over it."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.causes import alone
from tests.unit.diagnosis.causes_gpu import one_lane_of_sixteen
from tests.unit.diagnosis.scene import SLEEP


def test_the_price_is_the_time_that_the_full_link_would_save() -> None:
    """0.6 GB/s take 61 % of the time on one lane of generation 3, and 4 % on sixteen."""
    standing = one_lane_of_sixteen().play(12).engine.standing[100]
    assert standing.shares["pcie-degraded"] * (standing.job.lost or 0.0) == pytest.approx(0.57, abs=0.03)
    evidence = {one.metric: one.value for one in standing.verdict.evidence}
    assert (evidence["pcie_lanes"], evidence["pcie_generation"]) == (1, 3)
    assert "1 of its 16 PCIe lanes" in standing.verdict.detail


@pytest.mark.parametrize("moved", [0.0, 3e6])
def test_a_narrow_link_without_copies_is_no_cause(moved: float) -> None:
    scene = one_lane_of_sixteen()
    scene.gpus[0]["pcie_rx_bytes_per_s"] = moved
    assert scene.play(12).engine.verdict.cause != "pcie-degraded"


def test_a_generation_that_falls_at_rest_is_no_fault() -> None:
    scene = alone(35.0, 0.02, [SLEEP], pcie_rx_bytes_per_s=12e9, pcie_gen_max=5, pcie_width=16, pcie_width_max=16)
    seen = set()
    for tick in range(20):
        scene.gpus[0]["pcie_gen"] = 5 if tick % 5 == 0 else 1
        seen.add(scene.play(1).engine.verdict.cause)
    assert "pcie-degraded" not in seen


def test_a_link_that_is_trained_down_while_it_works_is_found() -> None:
    scene = alone(60.0, 0.02, [SLEEP], pcie_rx_bytes_per_s=12e9, pcie_gen=5, pcie_gen_max=5, pcie_width=16, pcie_width_max=16)
    assert scene.play(6).engine.verdict.cause != "pcie-degraded"
    scene.gpus[0] |= {"pcie_width": 4, "util_pct": 25.0}
    assert scene.play(6).engine.verdict.cause == "pcie-degraded"


def test_copies_over_c2c_are_no_bytes_of_pcie() -> None:
    scene = one_lane_of_sixteen(c2c_links=5)
    assert scene.play(12).engine.verdict.cause not in ("pcie-degraded", "h2d-transfer")


@pytest.mark.parametrize(("moved_mb_per_s", "is_told"), [(30_000, True), (1_000, False)])
def test_copies_over_c2c_are_priced_by_its_links(moved_mb_per_s: int, is_told: bool) -> None:
    """60 GB/s both ways of 447 GB/s are more than half of the time at a quarter of the links' rate."""
    verdict = one_lane_of_sixteen(c2c_links=10, c2c_link_bytes_per_s=44.7e9, c2c_mb_per_s=moved_mb_per_s).play(12).engine.verdict
    assert (verdict.cause == "h2d-transfer") == is_told
    if is_told:
        assert "over C2C" in verdict.detail
        assert next(one.value for one in verdict.evidence if one.metric == "c2c_bytes_per_s") == pytest.approx(60e9, rel=0.05)


def test_replays_call_for_another_riser() -> None:
    scene = one_lane_of_sixteen(pcie_replays=0)
    for second in range(12):
        scene.gpus[0]["pcie_replays"] = 50 * second
        scene.play(1, 1.0)
    verdict = scene.engine.verdict
    assert any("riser or cable" in fix.text for fix in verdict.fixes)
    assert next(one.value for one in verdict.evidence if one.metric == "pcie_replays_per_s") == pytest.approx(50.0)
