"""What verdicts say: words, numbers and commands that are true, and say the same."""

from __future__ import annotations

from gputop.diagnosis.model import Verdict
from tests.unit.diagnosis.causes import throttled
from tests.unit.diagnosis.causes_gpu import small_kernels
from tests.unit.diagnosis.causes_gpu import transfer
from tests.unit.diagnosis.causes_gpu import undersized
from tests.unit.diagnosis.causes_gpu import undersized_by_power


def _value(verdict: Verdict, metric: str) -> float | None:
    return next((one.value for one in verdict.evidence if one.metric == metric), None)


def test_what_was_not_measured_is_no_evidence():
    for make in (undersized_by_power, transfer, small_kernels, throttled):
        verdict = make().play(6).engine.verdict
        assert verdict.evidence
        assert all(one.value is not None for one in verdict.evidence), verdict.cause


def test_a_share_of_the_gpu_says_where_it_is_from():
    assert "use 9% of the GPU meanwhile" in undersized().play(6).engine.verdict.detail
    verdict = undersized_by_power().play(6).engine.verdict
    assert "of the GPU (by its power) meanwhile" in verdict.detail
    assert [one.text for one in verdict.evidence if one.metric == "power_w"] == ["drawn of 400 W"]
