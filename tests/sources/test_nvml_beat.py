"""The beat and the pollers of NVML: a call that hangs costs its own GPU, not the stream."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from gputop.collector import beat as collector
from gputop.model.frame import Frame
from gputop.sources import REGISTRY, Settings
from gputop.sources.nvml import poller
from tests.sources.nvml_rig import INTERVAL_NS, Rig
from tests.wait import PATIENCE_S

QUICK = "gpus 2", "util 5"


class Beating:
    """A collector of NVML alone, beside the test. It is also its sink."""

    def __init__(self, relays: bool) -> None:
        self.frames: list[Frame] = []
        self.before = {*threading.enumerate()}  # an earlier test's thread that hangs in a call is none of this collector's
        self.collector = collector.Collector(Settings(INTERVAL_NS), self, relays=relays)
        self.thread = threading.Thread(target=self.collector.run, daemon=True)
        self.thread.start()

    def send(self, frame: Frame) -> bool:
        self.frames.append(frame)
        return True

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                faulthandler.dump_traceback()
                raise AssertionError("\n".join(map(str, threading.enumerate())))
            time.sleep(0.01)

    def threads(self) -> list[str]:
        """Names of the collector's threads."""
        return [thread.name for thread in threading.enumerate() if thread not in self.before]

    def pollers(self) -> list[str]:
        """Names of its threads that poll GPUs for themselves, or hang in a call."""
        return [name for name in self.threads() if name.startswith("nvml-") and name != "nvml-watch"]

    def is_in_step(self) -> bool:
        """True if one thread beats, another stands by, and none is left with a GPU."""
        return not self.pollers() and sum(name in ("beat", "standby") for name in self.threads()) == 2

    def samples(self, gpu: int, since_ns: int) -> list[float]:
        told = [one for frame in self.frames for one in frame.gpus if one.index == gpu and one.t_ns > since_ns]
        return [one.util_pct for one in told if one.util_pct is not None]


@pytest.fixture(params=[True, False], ids=["relays", "alone"])
def beating(rig: Rig, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    rig.set(*QUICK)
    monkeypatch.setattr(collector, "registry", lambda: tuple(entry for entry in REGISTRY if entry.name == "nvml"))
    monkeypatch.setattr(collector, "raise_priority", lambda _rank: "")
    monkeypatch.setattr(poller, "_QUICK_STEP", 0.5)  # who has hung is back after two quick polls, not after sixteen
    beating = Beating(request.param)
    yield beating
    beating.collector.stop()
    beating.thread.join(PATIENCE_S)
    assert not beating.thread.is_alive()


def in_relays(test: Callable[..., None]) -> Callable[..., None]:
    """Only where the beat's thread polls."""
    return pytest.mark.parametrize("beating", [True], ids=["relays"], indirect=True)(test)


def silent(frames: list[Frame], gpu: int) -> bool:
    return any("has not answered for" in one.missing.get("util_pct", "") for frame in frames for one in frame.gpus if one.index == gpu)


@in_relays
def test_the_beat_polls_all_quick_gpus_itself(rig: Rig, beating: Beating) -> None:
    beating.until(lambda: beating.frames and not beating.pollers())
    rig.set("gpus 2", "util 6", "temp 55")
    since_ns = beating.frames[-1].t_ns
    beating.until(lambda: {6.0} <= {*beating.samples(0, since_ns)} & {*beating.samples(1, since_ns)})
    beating.until(lambda: any(one.temp_c == 55 for frame in beating.frames for one in frame.gpus))
    frames = [frame for frame in beating.frames[-10:] if frame.gpus]
    assert all(one.t_ns <= frame.t_ns + INTERVAL_NS for frame in frames for one in frame.gpus)


@in_relays
@pytest.mark.parametrize("call", ["UtilizationRates", "GpmSampleGet", "MemoryInfo", "CurrentClocksEventReasons", "ComputeRunningProcesses"])
def test_whatever_call_hangs_frames_go_on_and_the_gpu_comes_back_to_the_beat(rig: Rig, beating: Beating, call: str) -> None:
    beating.until(lambda: beating.frames and not beating.pollers())
    since_ns = beating.frames[-1].t_ns
    rig.set("gpus 2", "util 6", f"gpu1.hang.{call} 600000")
    beating.until(lambda: any("has not answered" in "".join(one.missing.values()) for frame in beating.frames for one in frame.gpus))
    assert beating.samples(0, since_ns).count(6.0) > 20
    assert max(newer.t_ns - older.t_ns for older, newer in pairwise(beating.frames)) < 1_000_000_000
    since_ns = beating.frames[-1].t_ns
    rig.set("gpus 2", "util 7")
    beating.until(lambda: 7.0 in beating.samples(1, since_ns))
    beating.until(beating.is_in_step)


@in_relays
@pytest.mark.parametrize("gpus", [2, 16])
def test_where_the_whole_driver_hangs_frames_go_on_with_the_reason(rig: Rig, beating: Beating, gpus: int) -> None:
    rig.set(f"gpus {gpus}", "util 5")
    beating.until(lambda: beating.frames and beating.samples(gpus - 1, 0) and not beating.pollers())
    since_ns = beating.frames[-1].t_ns
    rig.set(f"gpus {gpus}", "util 6", "hang.* 600000")
    beating.until(lambda: all(silent(beating.frames, gpu) for gpu in range(gpus)))
    beats = [frame.t_ns for frame in beating.frames if frame.t_ns > since_ns]
    assert max(newer - older for older, newer in pairwise(beats)) < 2_000_000_000
    seen = len(beating.frames)
    beating.until(lambda: len(beating.frames) > seen + 20)
    since_ns = beating.frames[-1].t_ns
    rig.set(f"gpus {gpus}", "util 7")
    beating.until(lambda: all(7.0 in beating.samples(gpu, since_ns) for gpu in range(gpus)))
    beating.until(beating.is_in_step)


@in_relays
def test_it_ends_while_calls_hang(rig: Rig, beating: Beating) -> None:
    beating.until(lambda: beating.frames and not beating.pollers())
    rig.set("gpus 2", "hang.* 600000")
    beating.until(lambda: silent(beating.frames, 0) and silent(beating.frames, 1))
    beating.collector.stop()
    beating.thread.join(PATIENCE_S)
    assert not beating.thread.is_alive()
    rig.set("gpus 2")


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
