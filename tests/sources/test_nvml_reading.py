"""A reading of several ways: which one is used when calls fail for once, for a while or for good."""

from __future__ import annotations

from math import inf

import pynvml
import pytest

from gputop.frame import SECOND_NS
from gputop.sources.nvml.gpm import _Metric
from gputop.sources.nvml.gpm import _value_of
from gputop.sources.nvml.reading import Lost
from gputop.sources.nvml.reading import Missing
from gputop.sources.nvml.reading import Reading
from gputop.sources.nvml.reading import Values
from gputop.sources.nvml.reading import Way


class Ways:
    """Two ways to read ``x``, 1.0 and 2.0, each of which fails with its code of ``errors``."""

    def __init__(self) -> None:
        self.errors = [0, 0]
        self.reading = Reading(("x",), SECOND_NS, self._way(0), self._way(1))

    def read(self, at_s: int) -> tuple[object, str]:
        """The value and the reason."""
        values: Values = {}
        missing: Missing = {}
        self.reading.read(at_s * SECOND_NS, values, missing, False)
        return values.get("x"), missing.get("x", "")

    def _way(self, at: int) -> Way:
        def way(values: Values, _: Missing) -> None:
            if self.errors[at]:
                raise pynvml.NVMLError(self.errors[at])
            values["x"] = at + 1.0

        return way


def test_one_failure_is_a_gap_and_a_row_of_them_leads_to_the_other_way_for_a_minute() -> None:
    ways = Ways()
    assert ways.read(0) == (1.0, "")
    ways.errors[0] = pynvml.NVML_ERROR_UNKNOWN
    assert [ways.read(at) for at in (1, 2, 3, 4)] == [(None, ""), (None, ""), (2.0, ""), (2.0, "")]
    assert ways.read(64) == (2.0, "")  # asked again, in vain: no gap
    ways.errors[0] = 0
    assert [ways.read(65)[0], ways.read(125)[0]] == [2.0, 1.0]


def test_where_no_way_gives_a_value_the_reason_is_the_one_that_may_pass() -> None:
    ways = Ways()
    ways.errors = [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NOT_SUPPORTED]
    assert ways.read(0)[1].startswith("the driver failed")
    assert ways.reading.due_ns < 2 * SECOND_NS
    ways.errors[0] = 0
    assert ways.read(1) == (1.0, "")


def test_a_gpu_lost_in_the_second_way_is_lost() -> None:
    ways = Ways()
    ways.errors = [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST]
    with pytest.raises(Lost):
        ways.read(0)


@pytest.mark.parametrize(("value", "told"), [(inf, "inf"), (-5.0, "-5"), (1e18, "1e+18")])
def test_what_gpm_says_and_cannot_be_is_no_value(value: float, told: str) -> None:
    assert _value_of(_Metric(value=value)) == f"the driver says {told} %, which cannot be"


def test_gpm_rounds_beyond_the_whole() -> None:
    assert _value_of(_Metric(value=100.4)) == 100.0
