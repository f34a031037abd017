"""Clocks held down: for how long, by the driver's own count, and what smoothed power does not show."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.causes_gpu import hot_gpu, undersized_by_power


def test_the_time_of_slow_clocks_is_the_drivers_count() -> None:
    """Every 10 s it is read: 7 s of the last ten were lost to heat, and none to the power cap."""
    scene = hot_gpu()
    scene.gpus[0] |= {"slowed_heat_ns": 5_000_000_000, "slowed_power_ns": 9_000_000_000}
    scene.play(6)
    for name in ("slowed_heat_ns", "slowed_power_ns"):
        del scene.gpus[0][name]
    scene.play(4)
    scene.gpus[0] |= {"slowed_heat_ns": 12_000_000_000, "slowed_power_ns": 9_000_000_000}
    scene.play(0.2)
    for name in ("slowed_heat_ns", "slowed_power_ns"):
        del scene.gpus[0][name]
    verdict = scene.play(4).engine.verdict
    found = {one.metric: one.value for one in verdict.evidence}
    assert verdict.cause == "gpu-throttle"
    assert 100.0 >= (found["slowed_heat_pct"] or 0.0) >= 70.0
    assert "slowed_power_cap_pct" not in found


@pytest.mark.parametrize(("smoothed", "cause"), [(False, "undersized-work"), (True, "none")])
def test_smoothed_power_is_no_sign_of_little_work(smoothed: bool, cause: str) -> None:
    scene = undersized_by_power()
    scene.gpus[0]["power_smoothing"] = smoothed
    assert scene.play(12).engine.verdict.cause == cause
