"""The collector and its sources: one that breaks, and what is counted of them."""

from __future__ import annotations

import random
import sys
import time
import types
from collections.abc import Callable
from itertools import cycle, pairwise
from pathlib import Path
from typing import ClassVar

import pytest

from gputop.collector import beat as collector
from gputop.model.frame import SECOND_NS, Frame, Gpu, ProcInfo, ProcSample, SourceState
from gputop.model.rates import proc_rates
from gputop.recording.format import pack_frames
from gputop.sources import REGISTRY, Beat, Entry, Settings
from gputop.system import crash
from gputop.system.errors import UserError
from gputop.system.privilege import authorize_sudo

TICK_NS = 1_000_000


class Kept:
    """Keeps the frames that are sent, and that a stream can hold."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, frame: Frame) -> bool:
        pack_frames([frame])
        self.frames.append(frame)
        return True


class Plain:
    """A source that has nothing to say."""

    def __init__(self, _settings: Settings) -> None: ...

    def open(self) -> SourceState:
        return SourceState(type(self).__name__, "ok")

    def read(self, beat: Beat, frame: Frame) -> None: ...

    def close(self) -> None: ...


class Odd(Plain):
    """Meets an odd value in its third tick, and cannot even be closed."""

    def read(self, beat: Beat, _frame: Frame) -> None:
        if beat.seq == 2:
            raise ValueError("odd\x1b[2J")

    def close(self) -> None:
        raise OSError


class Slow(Plain):
    """Takes its time to open."""

    opened_ns = 0

    def open(self) -> SourceState:
        until_ns = time.monotonic_ns() + 20 * TICK_NS
        while time.monotonic_ns() < until_ns:
            pass
        Slow.opened_ns = time.monotonic_ns()
        return super().open()


class Wrong(Plain):
    """Finds out that what the user asked for is not there."""

    def read(self, beat: Beat, _frame: Frame) -> None:
        if beat.seq == 1:
            raise UserError("there is no GPU 7")


class Two(Plain):
    """Two GPUs, of which one is lost after some ticks."""

    def read(self, beat: Beat, frame: Frame) -> None:
        frame.gpus += [Gpu(index, beat.t_ns, nvml_ns=100 * beat.seq, nvml_calls=beat.seq) for index in range(2 if beat.seq < 3 else 1)]


class Vast(Plain):
    """GPU 0 counts beyond what the stream holds, for one tick; GPU 1 does not."""

    def read(self, beat: Beat, frame: Frame) -> None:
        frame.gpus += [Gpu(0, beat.t_ns, util_pct=5.0, energy_mj=1 << 64 if beat.seq == 1 else 7), Gpu(1, beat.t_ns, energy_mj=8)]


class Endless(Plain):
    """Tells of a process what no stream holds, for one tick."""

    def read(self, beat: Beat, frame: Frame) -> None:
        if beat.seq == 1:
            frame.gone.append(1 << 64)


class Trainers(Plain):
    """One that trains alone, one that has a worker."""

    def read(self, beat: Beat, frame: Frame) -> None:
        if not beat.seq:
            worker = ProcInfo(30, 1, 20, comm="pt_data_worker", cmdline=["python"])
            frame.infos += [*(ProcInfo(pid, 1, cmdline=["python"], uses_cuda=True) for pid in (10, 20)), worker]


class Feeding(Plain):
    """Tells who wakes those without workers, some of whom train themselves."""

    beats: ClassVar[list[Beat]] = []
    wakers = frozenset((20, 99))

    def read(self, beat: Beat, _frame: Frame) -> None:
        self.beats.append(beat)


def frames_of(
    monkeypatch: pytest.MonkeyPatch,
    *sources: type[Plain],
    ticks: int,
    wait: Callable[[float], None] = lambda _: None,
    interval_ns: int = TICK_NS,
    reopens: bool = True,
    everyone: bool = False,
    granted: str = "",
    is_later: bool = False,
) -> list[Frame]:
    module = types.ModuleType("gputop_sources_of_this_test")
    for source in sources:
        setattr(module, source.__name__, source)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entries = tuple(Entry(source.__name__, module.__name__, source.__name__, reopens=reopens, is_later=is_later) for source in sources)
    monkeypatch.setattr(collector, "registry", lambda: entries)
    monkeypatch.setattr(collector, "raise_priority", lambda _rank: granted)
    kept = Kept()
    collector.Collector(Settings(interval_ns, everyone=everyone), kept, leaves_root=True).run(ticks, wait)
    return kept.frames


def test_after_the_last_tick_there_is_no_beat_to_wait_for(monkeypatch: pytest.MonkeyPatch):
    """`collect --frames 1 --interval 60` need not last a minute."""
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        time.sleep(seconds)

    assert len(frames_of(monkeypatch, Plain, ticks=1, interval_ns=60 * SECOND_NS, wait=wait)) == 1
    assert waited == []
    assert len(frames_of(monkeypatch, Plain, ticks=2, interval_ns=50 * TICK_NS, wait=wait)) == 2
    assert 0 < sum(waited) <= 1.5 * 0.05


@pytest.mark.parametrize("phase", [0.1, 0.4, 0.6, 0.9])
def test_between_the_ticks_of_a_single_look_lies_an_interval_wherever_the_grid_is(monkeypatch: pytest.MonkeyPatch, phase: float):
    now_ns = [int((7 + phase) * SECOND_NS)]
    clock = types.SimpleNamespace(monotonic_ns=lambda: now_ns[0], thread_time_ns=time.thread_time_ns)
    monkeypatch.setattr(collector, "time", clock)

    def wait(seconds: float) -> None:
        now_ns[0] += round(seconds * SECOND_NS)

    frames = frames_of(monkeypatch, Plain, ticks=4, interval_ns=SECOND_NS, wait=wait, everyone=True)
    assert [newer.t_ns - older.t_ns for older, newer in pairwise(frames)] == [SECOND_NS] * 3


class Looks(Plain):
    """A process that computes in the first half of each of its steps, and sleeps in the second: how a look meets it, on a made-up clock."""

    step_ns = 0
    took_ns = 0
    now_ns: ClassVar[list[int]] = [0]

    def is_read_ahead(self, beat: Beat) -> bool:
        return beat.seq > 1

    def read(self, _beat: Beat, frame: Frame) -> None:
        now, step = self.now_ns[0], self.step_ns
        ran_ns = now // step * (step // 2) + min(now % step, step // 2)
        state = "R" if now % step < step // 2 else "S"
        frame.procs.append(ProcSample(pid=7, start_ticks=1, t_ns=now, state=state, utime_ns=ran_ns, stime_ns=0, rss_bytes=0, num_threads=1))
        self.now_ns[0] += self.took_ns


def looks(monkeypatch: pytest.MonkeyPatch, step_ns: int, took_ns: int = 2_000_000, ticks: int = 1000) -> list[Frame]:
    monkeypatch.setattr(Looks, "step_ns", step_ns)
    monkeypatch.setattr(Looks, "took_ns", took_ns)
    monkeypatch.setattr(Looks, "now_ns", [3 * SECOND_NS])
    clock = types.SimpleNamespace(monotonic_ns=lambda: Looks.now_ns[0], thread_time_ns=time.thread_time_ns)
    monkeypatch.setattr(collector, "time", clock)
    monkeypatch.setattr(collector, "random", types.SimpleNamespace(Random=lambda: random.Random(5)))

    def wait(seconds: float) -> None:
        Looks.now_ns[0] += round(seconds * SECOND_NS)

    return frames_of(monkeypatch, Looks, ticks=ticks, interval_ns=SECOND_NS // 10, wait=wait)[2:]


@pytest.mark.parametrize("step_ms", [20, 50, 100])
def test_a_job_whose_steps_keep_time_with_the_beat_is_seen_in_the_right_share_of_its_states(monkeypatch: pytest.MonkeyPatch, step_ms: int):
    frames = looks(monkeypatch, step_ms * 1_000_000)
    ran = sum(frame.procs[0].state == "R" for frame in frames) / len(frames)
    assert abs(ran - 0.5) < 0.12


def test_rates_between_looks_of_uneven_spacing_are_right(monkeypatch: pytest.MonkeyPatch):
    frames = looks(monkeypatch, 1_000_000)
    pairs = [(older.procs[0], newer.procs[0]) for older, newer in pairwise(frames)]
    rates = [((newer.t_ns - older.t_ns) / SECOND_NS, rate) for older, newer in pairs if (rate := proc_rates(older, newer)) is not None]
    assert len(rates) == len(frames) - 1
    assert (min(seconds for seconds, _ in rates) < 0.05, max(seconds for seconds, _ in rates) > 0.15) == (True, True)
    assert all(rate.cpu_pct == pytest.approx(50, abs=8) for seconds, rate in rates if seconds > 0.01)


def test_frames_stay_on_the_beat_and_looks_ahead_of_it_end_before_it(monkeypatch: pytest.MonkeyPatch):
    frames = looks(monkeypatch, 100_000_000)
    assert {newer.t_ns - older.t_ns for older, newer in pairwise(frames)} == {100_000_000}
    assert {(frame.late_ns, frame.missed) for frame in frames} == {(0, 0)}
    ahead = [frame.t_ns - frame.procs[0].t_ns for frame in frames]
    assert all(len(frame.procs) == 1 for frame in frames)
    assert min(ahead) >= 2_000_000
    assert max(ahead) > 93_000_000
    assert [any(at <= one < at + 10_000_000 for one in ahead) for at in range(10_000_000, 90_000_000, 10_000_000)] == [True] * 8


def test_a_source_too_slow_to_be_read_ahead_is_read_at_the_beat(monkeypatch: pytest.MonkeyPatch):
    frames = looks(monkeypatch, 100_000_000, took_ns=60_000_000, ticks=100)
    assert {(frame.late_ns, frame.missed) for frame in frames[1:]} == {(0, 0)}
    assert sum(frame.t_ns == frame.procs[0].t_ns for frame in frames) > 60


def test_after_one_slow_reading_a_source_is_read_ahead_again(monkeypatch: pytest.MonkeyPatch):
    reads = Looks.read

    def read(self: Looks, beat: Beat, frame: Frame) -> None:
        reads(self, beat, frame)
        self.now_ns[0] += 60_000_000 if beat.seq == 10 else 0

    monkeypatch.setattr(Looks, "read", read)
    ahead = [frame.procs[0].t_ns < frame.t_ns - 2_000_000 for frame in looks(monkeypatch, 100_000_000, ticks=100)]
    assert not all(ahead[9:12])
    assert all(ahead[20:])


def test_key_frames_come_each_ten_seconds_of_beats_however_early_one_is(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a block of a single frame stands before some of them in a recording."""
    now_ns, jitter_ns = [1_000_000_037], cycle([0, 90_000, 20_000, 70_000, 10_000, 50_000, 30_000])
    clock = types.SimpleNamespace(monotonic_ns=lambda: now_ns[0], thread_time_ns=time.thread_time_ns)
    monkeypatch.setattr(collector, "time", clock)

    def wait(seconds: float) -> None:
        now_ns[0] += round(seconds * SECOND_NS)
        now_ns[0] += -(now_ns[0] % 1_000_000) + next(jitter_ns)

    frames = frames_of(monkeypatch, Plain, ticks=1205, interval_ns=100 * TICK_NS, wait=wait)
    assert [frame.seq for frame in frames if frame.key][1:] == list(range(100, 1201, 100))


def test_who_wakes_a_trainer_without_workers_is_asked_for_and_told(monkeypatch: pytest.MonkeyPatch):
    Feeding.beats.clear()
    frames_of(monkeypatch, Trainers, Feeding, ticks=2)
    beat = Feeding.beats[-1]
    assert (beat.alone, beat.wakers, beat.hot) == ({10}, {99}, {10, 20, 30})


def test_a_source_that_breaks_leaves_the_others_and_is_opened_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(collector, "LOOK_EVERY_NS", 0)
    monkeypatch.setattr(collector, "REOPEN_EVERY_NS", 0)
    frames = frames_of(monkeypatch, Odd, Plain, ticks=6)
    told = [state for frame in frames for state in frame.sources if state.name == "Odd"]
    assert [state.state for state in told] == ["ok", "unavailable", "ok"]
    assert told[1].reason.startswith("this is a bug: ValueError: odd·[2J")
    assert "in read" in crash.read_log()
    assert [state.state for frame in frames for state in frame.sources if state.name == "Plain"] == ["ok"]


def test_what_a_source_said_just_before_it_broke_does_not_stand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    read = Odd.read

    def said(self: Odd, beat: Beat, frame: Frame) -> None:
        beat.changed.append(SourceState("Odd", "ok", detail={"read": str(beat.seq)}))
        read(self, beat, frame)

    monkeypatch.setattr(Odd, "read", said)
    states = [state for frame in frames_of(monkeypatch, Odd, ticks=6, reopens=False) for state in frame.sources if state.name == "Odd"]
    assert states[-1].state == "unavailable"


def test_a_source_that_breaks_and_is_not_opened_again_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(collector, "LOOK_EVERY_NS", 0)
    monkeypatch.setattr(collector, "REOPEN_EVERY_NS", 0)
    frames = frames_of(monkeypatch, Odd, ticks=6, reopens=False)
    told = [state for frame in frames for state in frame.sources if state.name == "Odd"]
    assert [(state.state, state.remedy) for state in told] == [("ok", ""), ("unavailable", "start gputop again")]


def test_the_first_frame_begins_when_the_sources_are_open(monkeypatch: pytest.MonkeyPatch):
    first = frames_of(monkeypatch, Slow, Plain, ticks=1)[0]
    assert first.t_ns >= Slow.opened_ns
    assert (first.late_ns, first.missed) == (0, 0)
    assert [state.name for state in first.sources] == ["Slow", "Plain", "beat"]


class OnGpus(Plain):
    """Knows who is on the GPUs once it was read."""

    pids = frozenset[int]()

    def read(self, _beat: Beat, _frame: Frame) -> None:
        self.pids = frozenset({7})


class Asks(Plain):
    """Stands before the one that knows who is on the GPUs."""

    told: list[frozenset[int]] = []

    def read(self, beat: Beat, _frame: Frame) -> None:
        Asks.told.append(beat.gpu_pids)


def test_the_first_frame_is_read_with_who_is_on_the_gpus(monkeypatch: pytest.MonkeyPatch):
    Asks.told.clear()
    frames_of(monkeypatch, Asks, OnGpus, ticks=2)
    assert Asks.told == [{7}, {7}]


def test_what_a_screen_need_not_wait_for_is_opened_after_the_first_frame(monkeypatch: pytest.MonkeyPatch):
    frames = frames_of(monkeypatch, Plain, ticks=2, is_later=True)
    assert [[state.name for state in frame.sources if state.name != "beat"] for frame in frames] == [[], ["Plain"]]


def test_the_second_frame_does_not_stand_right_behind_the_first(monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = []
    frames_of(monkeypatch, Plain, ticks=2, wait=waits.append, interval_ns=10**8)
    assert 0.04 < waits[0] < 0.15


def test_a_number_that_the_stream_cannot_hold_costs_the_sample_that_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    frames = frames_of(monkeypatch, Vast, ticks=3)
    assert [[gpu.energy_mj for gpu in frame.gpus] for frame in frames] == [[7, 8], [None, 8], [7, 8]]
    missing = frames[1].gpus[0].missing
    assert missing.keys() == {"util_pct", "energy_mj"}
    assert missing["energy_mj"].startswith("this is a bug: OverflowError")
    assert "in _send" in crash.read_log()


def test_a_frame_that_the_stream_cannot_hold_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(collector, "COST_EVERY_NS", 1)
    frames = frames_of(monkeypatch, Endless, ticks=3)
    assert [(frame.seq, frame.key, frame.cost and frame.cost.dropped) for frame in frames] == [(0, True, 0), (2, True, 1)]


def test_what_is_asked_for_and_not_there_ends_the_stream(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="no GPU 7"):
        frames_of(monkeypatch, Plain, Wrong, ticks=6)


def test_why_there_is_no_ebpf():
    entry = next(entry for entry in REGISTRY if entry.name == "ebpf")
    off = [entry.off(settings) for settings in (Settings(), Settings(ebpf=False), Settings(ebpf=False, everyone=True))]
    assert off == [None, "not asked for: --no-ebpf", "a single look is too short for it"]
    samples = next(entry for entry in REGISTRY if entry.name == "perf")
    assert [samples.off(Settings(everyone=single)) for single in (False, True)] == [None, "a single look is too short for it"]


def test_without_sudo_the_word_is_not_that_it_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="sudo: No such file or directory: run gputop as root, or leave"):
        authorize_sudo()


def test_what_nvml_costs_does_not_fall_when_a_gpu_is_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collector, "COST_EVERY_NS", 1)
    costs = [frame.cost for frame in frames_of(monkeypatch, Two, ticks=6) if frame.cost is not None]
    assert [cost.nvml_calls for cost in costs] == [0, 2, 4, 5, 6, 7]
    assert [cost.nvml_ns for cost in costs] == [0, 200, 400, 500, 600, 700]
    assert [cost.proc_ns for cost in costs] == sorted(cost.proc_ns for cost in costs)


def test_who_was_stopped_between_two_beats_reads_nothing_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame after it stands anywhere between two beats."""
    interval_ns = 20 * TICK_NS
    stops = cycle((0.0, 1.6, 0.0, 2.8, 0.0, 1.9))

    def wait(seconds: float) -> None:
        time.sleep(seconds + next(stops) * interval_ns / 1e9)

    frames = frames_of(monkeypatch, Plain, ticks=8, wait=wait, interval_ns=interval_ns)
    assert all(after.t_ns - before.t_ns >= interval_ns // 2 for before, after in pairwise(frames))


class Busy(Plain):
    """Takes all of a CPU."""

    def read(self, _beat: Beat, _frame: Frame) -> None:
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass


def test_a_beat_that_takes_too_long_gives_up_its_place_and_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collector, "MOST_SHARE", 0.01)
    frames = frames_of(monkeypatch, Busy, ticks=12, granted="SCHED_RR 3")
    told = [state for frame in frames for state in frame.sources if state.name == "beat"]
    assert [(state.state, state.detail["priority"]) for state in told] == [("ok", "SCHED_RR 3"), ("partial", "ordinary")]
    assert "SCHED_RR 3 is given up" in told[1].reason
    assert "asks for it again" in told[1].remedy
