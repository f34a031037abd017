"""A reading of several ways: which one is used when calls fail for once, for a while or for good."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from math import inf

import pytest

from gputop.model.frame import SECOND_NS
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml import groups
from gputop.sources.nvml.driver import Device, Meter, unavailable
from gputop.sources.nvml.fast import fast_groups
from gputop.sources.nvml.gpm import C2C_COUNTERS, GPM_FIELDS, _Kernels, _MetricsGet, _value_of
from gputop.sources.nvml.groups import FieldGroup, Lost, Missing, Poll, Values, Way, read_due
from gputop.sources.nvml.slow import NvLink, slow_groups


class Ways:
    """Two ways to read ``x``, 1.0 and 2.0, each of which fails with its code of ``errors``."""

    def __init__(self) -> None:
        self.errors = [0, 0]
        self.group = FieldGroup(("x",), SECOND_NS, self._way(0), self._way(1))

    def read(self, at_s: int) -> tuple[object, str]:
        """The value and the reason."""
        values: Values = {}
        missing: Missing = {}
        self.group.read(at_s * SECOND_NS, values, missing, False)
        return values.get("x"), missing.get("x", "")

    def _way(self, at: int) -> Way:
        def way(values: Values, _: Missing) -> None:
            if self.errors[at]:
                raise nvml.NVMLError(self.errors[at])
            values["x"] = at + 1.0

        return way


def test_a_library_without_a_function_that_all_others_need_is_too_old() -> None:
    told = unavailable(nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND))
    assert told.reason.startswith("the NVIDIA driver is too old")
    assert told.remedy == "install a newer driver (R384 or later)"


def test_one_failure_is_a_gap_and_a_row_of_them_a_reason_and_the_way_that_worked_is_kept() -> None:
    ways = Ways()
    assert ways.read(0) == (1.0, "")
    ways.errors[0] = nvml.NVML_ERROR_UNKNOWN
    failed = (None, f"the driver failed: {nvml.NVMLError(nvml.NVML_ERROR_UNKNOWN)}")
    assert [ways.read(at) for at in (1, 2, 3, 4)] == [(None, ""), (None, ""), failed, failed]
    ways.errors[0] = 0
    assert ways.read(5) == (1.0, "")


@pytest.mark.parametrize(("error", "again_s"), [(nvml.NVML_ERROR_UNKNOWN, 5), (nvml.NVML_ERROR_NOT_SUPPORTED, 60)])
def test_a_way_that_has_never_worked_or_is_no_more_leads_to_the_other_until_it_is_asked_again(error: int, again_s: int) -> None:
    ways = Ways()
    ways.errors[0] = error
    assert [ways.read(at) for at in (0, 1, again_s)] == [(2.0, ""), (2.0, ""), (2.0, "")]  # asked again, in vain: no gap
    ways.errors[0] = 0
    assert [ways.read(2 * again_s - 1)[0], ways.read(2 * again_s)[0]] == [2.0, 1.0]
    ways.errors[0] = nvml.NVML_ERROR_NOT_SUPPORTED
    assert ways.read(2 * again_s + 1) == (2.0, "")


def test_where_no_way_gives_a_value_the_reason_is_the_one_that_may_pass() -> None:
    ways = Ways()
    ways.errors = [nvml.NVML_ERROR_UNKNOWN, nvml.NVML_ERROR_NOT_SUPPORTED]
    assert ways.read(0)[1].startswith("the driver failed")
    assert ways.group.due_ns < 2 * SECOND_NS
    ways.errors[0] = 0
    assert ways.read(1) == (1.0, "")


def test_a_gpu_lost_in_the_second_way_is_lost() -> None:
    ways = Ways()
    ways.errors = [nvml.NVML_ERROR_UNKNOWN, nvml.NVML_ERROR_GPU_IS_LOST]
    with pytest.raises(Lost):
        ways.read(0)


@pytest.mark.parametrize(("value", "told"), [(inf, "inf"), (-5.0, "-5"), (1e18, "1e+18")])
def test_what_gpm_says_and_cannot_be_is_no_value(value: float, told: str) -> None:
    assert _value_of(0, value) == f"the driver reports {told} %, which is impossible"


def test_gpm_rounds_beyond_the_whole() -> None:
    assert _value_of(0, 100.4) == 100.0


class Kernels:
    """GPM's kernels' time by a driver that says ``told`` per cent, or refuses it; ``asked``: when it was asked, in s."""

    def __init__(self) -> None:
        self.told, self.code, self.asked = 0.0, 0, list[float]()
        self._kernels, self._now_s = _Kernels(), 0.0

    def read(self, now_s: float, sms: float | str = 60.0) -> float | str:
        self._now_s = now_s
        return self._kernels.read(sms, 1 + round(now_s * SECOND_NS), self._answer)

    def _answer(self, request: _MetricsGet) -> None:
        self.asked.append(self._now_s)
        request.metrics[0].nvmlReturn, request.metrics[0].value = self.code, self.told


def test_kernels_that_contradict_the_sms_are_asked_for_again_after_pauses_that_double() -> None:
    kernels, told = Kernels(), set[str]()
    for second in range(3600):
        value = kernels.read(second, sms=40.0 + second % 40)
        assert isinstance(value, str)
        told.add(value.rpartition("after ")[2])
    assert kernels.asked == [0, 30, 90, 210, 450, 930, 1530, 2130, 2730, 3330]
    assert told == {"30 s", "60 s", "120 s", "240 s", "480 s", "600 s"}


def test_kernels_that_agree_again_with_sms_at_work_are_believed_again() -> None:
    kernels = Kernels()
    assert "is impossible" in str(kernels.read(0))
    kernels.told = 75.0
    assert "is impossible" in str(kernels.read(29.9))
    assert [kernels.read(30), kernels.read(31), kernels.read(32, sms=0.0)] == [75.0, 75.0, 0.0]
    kernels.told = 0.0
    assert "after 60 s" in str(kernels.read(33))
    kernels.told = 75.0
    assert "after 60 s" in str(kernels.read(92.9))
    assert kernels.read(93) == 75.0


@pytest.mark.parametrize("sms", [0.0, 2.0, "not yet"])
def test_beside_idle_or_unread_sms_kernels_prove_nothing(sms: float | str) -> None:
    """A driver that always says 0 agrees with these."""
    kernels = Kernels()
    kernels.read(0)
    assert "is impossible" in str(kernels.read(40, sms))
    assert kernels.asked == [0]


def test_kernels_that_are_refused_after_a_contradiction_say_so() -> None:
    kernels = Kernels()
    kernels.read(0)
    kernels.code = nvml.NVML_ERROR_NOT_SUPPORTED
    assert "no such metric" in str(kernels.read(31))
    kernels.code, kernels.told = 0, 80.0
    assert kernels.read(32) == 80.0


TICK_NS = SECOND_NS // 10


class Driver:
    """Its calls take as long as they are told to, by a clock that only they move. ``count`` counts nanoseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr(groups, "monotonic_ns", lambda: self.now_ns)

    def gauge(self, name: str, takes_ns: Callable[[], int]) -> FieldGroup:
        return FieldGroup((name,), TICK_NS, self._way(name, takes_ns))

    def counter(self, name: str, takes_ns: Callable[[], int]) -> FieldGroup:
        return FieldGroup((name,), TICK_NS, self._way(name, takes_ns), counts=True)

    def ticks(self, readings: list[FieldGroup], count: int = 20) -> list[list[Poll]]:
        """The reports of each tick."""
        told = []
        for beat_ns in range(SECOND_NS, SECOND_NS + count * TICK_NS, TICK_NS):
            self.now_ns = beat_ns
            told.append(list(read_due(readings, beat_ns, False)))
        return told

    def _way(self, name: str, takes_ns: Callable[[], int]) -> Way:
        def way(values: Values, _: Missing) -> None:
            self.now_ns += takes_ns()
            values[name] = self.now_ns

        return way


def test_a_counter_has_the_time_at_which_it_was_read_however_long_other_calls_take(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    slow = driver.gauge("memory", lambda: 45_000_000 if driver.now_ns // TICK_NS % 2 else 0)
    odd = driver.counter("late", lambda: 30_000_000 if driver.now_ns // TICK_NS % 3 else 0)
    ticks = driver.ticks([driver.counter("first", lambda: 0), slow, odd, driver.gauge("power", lambda: 0)])
    for name in ("first", "late"):
        read = [(report.t_ns, report.values[name]) for tick in ticks for report in tick if name in report.values]
        assert len(read) == len(ticks)
        rates = [(newer[1] - older[1]) / (newer[0] - older[0]) for older, newer in pairwise(read)]
        assert rates == pytest.approx([1.0] * len(rates), rel=0.02)


def test_a_quick_driver_is_told_in_one_report_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    first, util, second = driver.counter("first", lambda: 5_000_000), driver.gauge("util", lambda: 500_000), driver.counter("n", lambda: 0)
    ticks = driver.ticks([first, util, second])
    assert [list(report.values) for tick in ticks for report in tick] == [["first", "util", "n"]] * len(ticks)


def test_what_rates_are_made_of_is_a_counter() -> None:
    readings = fast_groups(Device(None, Meter()), TICK_NS)
    readings += slow_groups(Device(None, Meter()), readings[0])
    counted = {field for one in readings if one.counts for field in one.fields}
    counters = {"pcie_tx_bytes", "pcie_rx_bytes", "nvlink_tx_bytes", "nvlink_rx_bytes", "nvlink_links", "energy_mj", *C2C_COUNTERS}
    assert counted == counters | set(GPM_FIELDS)
    assert readings[0].counts, "in the first place it costs no report of its own"


def test_links_that_are_refused_leave_nothing_for_the_collector_of_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise nvml.NVMLError(nvml.NVML_ERROR_INVALID_ARGUMENT)

    monkeypatch.setattr(nvml, "nvmlDeviceGetNvLinkState", refuse)
    links = NvLink(Device(None, Meter()))
    gc.collect()
    gc.disable()
    try:
        with suppress(nvml.NVMLError):
            links({}, {})
        assert not [kept for kept in gc.get_objects() if isinstance(kept, nvml.NVMLError)]
    finally:
        gc.enable()
