"""A single look (`gputop --once`, `gputop doctor`) on drivers that are slow or hang."""

from __future__ import annotations

import time

import pytest

from gputop.doctor import checks as doctor
from gputop.sources.nvml.gpu import READ_FIELDS
from gputop.sources.nvml.poller import Poller
from tests.sources.nvml_rig import Rig


def test_a_single_look_waits_for_a_driver_that_takes_its_time_to_start(rig: Rig) -> None:
    rig.set("gpus 1", "util 12", "hang.Init 1500")
    source = rig.source(look=True)
    assert source.open().state == "ok"
    rig.read(source, key=True)
    assert rig.gpu().values["util_pct"] == 12.0


def test_a_single_look_waits_for_a_driver_that_is_slow_in_each_call(rig: Rig) -> None:
    rig.set("gpus 2", "util 12", "delay.* 20000")
    source = rig.source(look=True)
    assert source.open().state == "ok"
    rig.read(source, key=True)
    for index in (0, 1):
        unread = {*READ_FIELDS} - rig.gpu(index).values.keys() - rig.gpu(index).missing.keys()
        assert not unread
        assert not [reason for reason in rig.gpu(index).missing.values() if "has not answered" in reason]


@pytest.mark.parametrize("call", ["HandleByIndex", "UtilizationRates", "ComputeRunningProcesses"])
def test_a_single_look_gives_up_on_a_call_that_hangs(rig: Rig, call: str) -> None:
    rig.set("gpus 2", "util 12", f"gpu1.hang.{call} 600000")
    source = rig.source(look=True)
    began = time.monotonic()
    state = source.open()
    rig.read(source, key=True)
    assert time.monotonic() - began < 80  # eight where nobody else runs
    assert (state.state, state.reason) == ("partial", "GPU 1 does not answer")
    assert "the driver has not answered for" in rig.gpu(1).missing["procs"]
    assert rig.gpu(0).values["util_pct"] == 12.0


def test_silent_is_who_does_not_answer_a_call_not_who_has_many_to_answer() -> None:
    first, late_ns = Poller("", lambda _: None), 10**12
    second = Poller("", lambda _: None, starter=first)
    first.began_ns, first.meter.calls, first.meter.called_ns = late_ns - 201_000_000, 9, late_ns - 50_000_000
    assert (first.silent_ns(late_ns), second.silent_ns(late_ns)) == (0, 0)
    first.meter.called_ns = late_ns - 200_000_000
    assert (first.silent_ns(late_ns), second.silent_ns(late_ns)) == (200_000_000, 200_000_000)


@pytest.mark.parametrize(("since_ms", "told_ms"), [(450, 0), (1100, 1100)])
def test_a_call_that_takes_as_long_as_those_before_it_is_no_silence(since_ms: int, told_ms: int) -> None:
    poller, late_ns = Poller("", lambda _: None), 10**12
    poller.meter.calls, poller.meter.called_ns = 5, late_ns - since_ms * 1_000_000
    poller.began_ns = poller.meter.called_ns - 4 * 500_000_000
    assert poller.silent_ns(late_ns) == told_ms * 1_000_000


@pytest.mark.parametrize(("gpm", "state"), [(0, "limited"), (1, "ok")])
def test_the_doctor_does_not_wait_for_what_no_gpu_has(rig: Rig, gpm: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_GPU_PATIENCE_S", 60.0)
    rig.set("gpus 2", f"gpm {gpm}")
    check = doctor.gpu_checks("/")[1]
    assert check.state == state
    assert check.detail == ("SM, tensor and DRAM activity are read" if gpm else "not supported on this GPU")


def test_the_doctor_waits_for_a_slow_driver(rig: Rig) -> None:
    rig.set("gpus 1", "delay.* 20000")
    assert [(check.id, check.state) for check in doctor.gpu_checks("/")] == [("nvml", "ok"), ("gpm", "ok"), ("fabric", "ok")]
