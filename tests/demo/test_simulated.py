"""The simulated GPU reports what was booked on it, and nothing else."""

from __future__ import annotations

import os
import time

import pytest

from gputop.demo.work import FULL, DemoGpu
from gputop.model.frame import Frame
from gputop.model.frame import Gpu as Reading
from gputop.sources import Beat, Settings, Unavailable, simulated
from gputop.sources.simulated import VARIABLE, SimulatedSource


@pytest.fixture
def gpu_fd(monkeypatch: pytest.MonkeyPatch) -> int:
    fd = simulated.create(1)
    monkeypatch.setenv(VARIABLE, f"/proc/self/fd/{fd}")
    return fd


def _read(source: SimulatedSource, key: bool = False) -> list[Reading]:
    frame = Frame(0, time.monotonic_ns(), key=key)
    source.read(Beat(frame.t_ns, 0, key), frame)
    return frame.gpus


def _until_util(source: SimulatedSource, accept: float) -> float:
    """The first utilization of at least ``accept``, or the last one before the time is over."""
    deadline, util = time.monotonic() + 10, -1.0
    while time.monotonic() < deadline and util < accept:
        util = _read(source)[0].util_pct or 0.0
        time.sleep(0.02)
    return util


def test_counters_leave_out_what_is_booked_ahead() -> None:
    fd = simulated.create(1)
    words, at = simulated.attach(fd), simulated.base(0)
    words[at : at + 4] = memoryview(bytearray(32)).cast("Q")
    words[at + simulated.BUSY], words[at + simulated.UNTIL] = 900, 5_000
    words[at + simulated.SM_BUSY], words[at + simulated.SM_PPM] = 450, 500_000
    assert simulated.totals(words, 0, 4_900) == simulated.DeviceTotals(4_900, 800, 400, 0, 0)
    assert simulated.totals(words, 0, 6_000).busy_ns == 900
    os.close(fd)


def test_a_full_gpu_reads_100_and_an_idle_one_0(gpu_fd: int) -> None:
    source = SimulatedSource(Settings())
    assert source.open().state == "ok"
    try:
        assert _read(source)[0].util_pct == 0.0
        gpu = DemoGpu(gpu_fd, 0)
        gpu.launch(30_000)
        assert _until_util(source, 99.0) >= 99.0
        _read(source)
        time.sleep(0.05)
        full = _read(source)[0]
        assert full.sm_active_pct == pytest.approx(100, abs=1)
        assert full.power_w == pytest.approx(700, abs=7)
    finally:
        source.close()


def test_few_sms_are_busy_and_draw_little(gpu_fd: int) -> None:
    source = SimulatedSource(Settings())
    source.open()
    try:
        DemoGpu(gpu_fd, 0).launch(30_000, FULL // 20)
        assert _until_util(source, 99.0) >= 99.0
        light = _read(source)[0]
        assert light.sm_active_pct == pytest.approx(5, abs=1)
        assert light.power_w is not None
        assert light.power_w < 150
    finally:
        source.close()


def test_a_key_frame_says_who_is_on_it_and_what_is_not_simulated(gpu_fd: int) -> None:
    source = SimulatedSource(Settings())
    source.open()
    try:
        DemoGpu(gpu_fd, 0, memory_bytes=3 << 30).copy_in(5 << 20)
        often, seldom = _read(source, key=True)
        assert source.pids == {os.getpid()}
        assert often.mem_used_bytes == 3 << 30
        assert often.pcie_rx_bytes == 5 << 20
        assert seldom.missing["fan_pct"] == "not simulated"
        given = {name for gpu in (often, seldom) for name in Reading.__struct_fields__ if getattr(gpu, name) is not None}
        assert not given & set(seldom.missing)
        assert given | set(seldom.missing) | {"xid", "held_by", "missing"} >= set(Reading.__struct_fields__)
    finally:
        source.close()


@pytest.mark.parametrize("path", ["/nonexistent", "/dev/null", "/proc/self/exe"])
def test_without_a_demo_it_is_unavailable(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, path)
    with pytest.raises(Unavailable):
        SimulatedSource(Settings()).open()
