"""Prices: what a mechanism takes of a loss, by how often it comes and what each costs."""

from __future__ import annotations

import pytest

from gputop.diagnosis.facts.facts import JobFacts
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.gpuside import copying, launches
from tests.unit.diagnosis.causes import alone
from tests.unit.diagnosis.causes_gpu import launching_short_kernels, sampled_launches
from tests.unit.diagnosis.scene import ON_CPU, SLEEP, Scene


def job_of(scene: Scene) -> JobFacts:
    facts = scene.play(4).engine.facts
    assert facts is not None
    return facts.jobs[0]


def shares(scene: Scene) -> dict[str, float]:
    return {claim.cause: claim.share for claim in job_of(scene).claims}


@pytest.mark.parametrize(("per_s", "lost"), [(10_000, 0.0), (14_000, 0.0), (20_000, 0.15), (30_000, 0.4), (60_000, 0.9)])
def test_launches_cost_what_they_take_longer_than_their_kernels(per_s: float, lost: float) -> None:
    """25 us each, beside a GPU that works 35 % of the time and a main thread that is on a CPU for 90 %."""
    assert launches(job_of(launching_short_kernels(per_s))) == pytest.approx(lost, abs=0.03)


@pytest.mark.parametrize(("per_s", "part"), [(20_000, 0.23), (30_000, 0.62)])
def test_what_launches_do_not_cost_is_the_main_threads_work(per_s: float, part: float) -> None:
    found = shares(launching_short_kernels(per_s))
    assert found["small-kernels"] == pytest.approx(part, abs=0.06)
    assert found["small-kernels"] + found["main-thread-preprocessing"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("util", "lost"), [(35.0, True), (100.0, False)])
def test_launches_met_beside_a_gpu_that_works_cost_nothing(util: float, lost: bool) -> None:
    scene = sampled_launches()
    scene.gpus[0]["util_pct"] = util
    assert (launches(job_of(scene)) > 0.0) == lost


@pytest.mark.parametrize("link", [{}, {"pcie_gen": 5, "pcie_width": 16}, {"pcie_gen": 3, "pcie_width": 1}])
def test_bytes_take_their_time_over_the_link(link: dict[str, int]) -> None:
    """Twice as many take twice as long; pageable ones go at 6 GB/s or as fast as the link, others at a quarter of it."""
    once, twice = (job_of(alone(30.0, 0.5, [ON_CPU], pcie_rx_bytes_per_s=moved, **link)) for moved in (3e8, 6e8))
    for pinned in (False, True):
        assert copying(twice, pinned) == pytest.approx(2 * copying(once, pinned), rel=0.05)
    pageable, pinned_one = {0: (0.05, 0.05), 5: (0.05, 0.019), 3: (0.305, 1.22)}[link.get("pcie_gen", 0)]
    assert (copying(once, False), copying(once, True)) == pytest.approx((pageable, pinned_one), rel=0.1)


@pytest.mark.parametrize(("moved", "part"), [(2e9, 0.18), (4e9, 0.36), (8e9, 0.73), (40e9, 1.0)])
def test_a_sleep_beside_copies_is_theirs_as_far_as_these_take(moved: float, part: float) -> None:
    found = shares(alone(30.0, 0.02, [SLEEP], pcie_rx_bytes_per_s=moved, pcie_gen=5, pcie_width=16))
    assert found.get("h2d-transfer", 0.0) == pytest.approx(part, abs=0.06)


def test_prices_move_the_loss_and_keep_its_sum() -> None:
    for scene in (launching_short_kernels(30_000), alone(30.0, 0.02, [SLEEP], pcie_rx_bytes_per_s=8e9, pcie_gen=5, pcie_width=16)):
        found = [(claim.way.leaf, claim.share) for claim in job_of(scene).claims]
        assert sum(share for _, share in found) <= 1.0 + 1e-9
        assert {Leaf("launch", "main"), Leaf("copy", "link")} & {leaf for leaf, _ in found}
