"""The beat and the pollers of NVML: a call that hangs costs its own GPU, not the stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from gputop.collector import beat as collector
from gputop.model.frame import Frame
from gputop.sources import REGISTRY, Settings
from tests.sources.nvml_rig import INTERVAL_NS, Rig
from tests.wait import PATIENCE_S

QUICK = "gpus 2", "util 5"


class Beating:
    """A collector of NVML alone, beside the test. It is also its sink."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.collector = collector.Collector(Settings(INTERVAL_NS), self)
        self.thread = threading.Thread(target=self.collector.run, daemon=True)
        self.thread.start()

    def send(self, frame: Frame) -> bool:
        self.frames.append(frame)
        return True

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, threading.enumerate()
            time.sleep(0.01)

    def samples(self, gpu: int, since_ns: int) -> list[float]:
        told = [one for frame in self.frames for one in frame.gpus if one.index == gpu and one.t_ns > since_ns]
        return [one.util_pct for one in told if one.util_pct is not None]


@pytest.fixture
def beating(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    rig.set(*QUICK)
    monkeypatch.setattr(collector, "registry", lambda: tuple(entry for entry in REGISTRY if entry.name == "nvml"))
    monkeypatch.setattr(collector, "raise_priority", lambda _rank: "")
    beating = Beating()
    yield beating
    beating.collector.stop()
    beating.thread.join(PATIENCE_S)
    assert not beating.thread.is_alive()


def test_a_hanging_call_costs_the_others_no_more_than_a_beat(rig: Rig, beating: Beating) -> None:
    beating.until(lambda: beating.frames and beating.samples(0, 0) and beating.samples(1, 0))
    since_ns = beating.frames[-1].t_ns
    rig.set("gpus 2", "util 6", "gpu1.hang.UtilizationRates 3000")
    beating.until(lambda: any("has not answered for" in one.missing.get("util_pct", "") for frame in beating.frames for one in frame.gpus))
    assert set(beating.samples(1, since_ns)) <= {5.0}
    assert beating.samples(0, since_ns).count(6.0) > 20
    gaps = sorted(newer.t_ns - older.t_ns for older, newer in pairwise(beating.frames))
    assert gaps[-1] < 1_000_000_000, "the hang itself is three times as long"
    beating.until(lambda: 6.0 in beating.samples(1, since_ns))


def test_a_bug_in_a_lane_is_told_and_the_source_opened_again(beating: Beating, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(collector, "LOOK_EVERY_NS", 0)
    monkeypatch.setattr(collector, "REOPEN_EVERY_NS", 0)
    beating.until(lambda: beating.frames and beating.samples(0, 0) and beating.samples(1, 0))
    with monkeypatch.context() as patch:
        patch.setattr("gputop.sources.nvml.gpu.read_due", lambda *_: [][0])
        beating.until(lambda: any("IndexError" in source.reason for frame in beating.frames for source in frame.sources))
    since_ns = beating.frames[-1].t_ns
    beating.until(lambda: beating.samples(1, since_ns))
