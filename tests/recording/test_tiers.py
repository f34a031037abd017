"""The tiers of a recording: seconds leave behind what all their ticks would, and each time is read by the tier that is asked for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputop.findings.policy import FEED_EVERY_NS
from gputop.model.board import Board
from gputop.model.frame import Frame, Host, MainSamples, Preempt, Probes, ProcInfo, ProcSample, SchedThread
from gputop.recording.format import MINUTES, SECONDS, TICKS, TIERS, FormatError
from gputop.recording.parts import Parts
from gputop.recording.reader import Recording
from gputop.recording.scan import payload_at
from gputop.recording.seconds import Minutes, Seconds, merge_second
from gputop.recording.writer import Writer
from gputop.stream.following import Following
from gputop.stream.judged import judged
from gputop.stream.pace import SELDOM_NS, TURNS_NS
from tests.recording.made import HEADER, MS, SECOND, START_NS, Session, record
from tests.recording.test_columns import coarse
from tests.unit.diagnosis.scene import Scene, training

DATA = Path(__file__).parents[1] / "device" / "data"


def standing(board: Board) -> dict[str, Any]:
    """Everything on a board; of threads and calls not the longest waits, which are of the whole second."""
    names = ("seq", "t_ns", "infos", "procs", "host", "host_read_ns", "cgroups", "sources", "preempts", "wakeups", "sampled", "launches",
             "switch_share")  # fmt: skip
    found = {name: getattr(board, name) for name in names}
    found["gpus"] = {index: (gpu.values, gpu.read_ns, gpu.missing) for index, gpu in board.gpus.items()}
    found["threads"] = {tid: msgspec.structs.replace(thread, max_run_delay_ns=0) for tid, thread in board.threads.items()}
    found["calls"] = {key: msgspec.structs.replace(call, max_ns=0) for key, call in board.calls.items()}
    return found


@pytest.mark.parametrize("probes", [True, False])
def test_seconds_leave_the_board_of_their_ticks(probes: bool) -> None:
    ticks, by_seconds, seconds = Board(header=HEADER), Board(header=HEADER), Seconds()
    count = 0
    for frame in Session(2, 9, threads=3, probes=probes).frames(700, key_every=100):
        for merged in seconds.add(frame):
            by_seconds.fold(merged)
            count += merged.ticks
            if merged.ticks and merged.seq < frame.seq:  # those of the first second come at once
                assert standing(by_seconds) == standing(ticks)
                assert by_seconds.t_ns == ticks.t_ns
        ticks.fold(frame)
    for merged in seconds.flush():
        by_seconds.fold(merged)
        count += merged.ticks
    assert standing(by_seconds) == standing(ticks)
    assert count == 700


def sample(pid: int, i: int, start: int = 1, state: str = "S") -> ProcSample:
    return ProcSample(pid, start, START_NS + i * 100 * MS, state, i, 0, 4096, 1, syscall=i // 5)


def test_who_ends_and_who_comes_back_within_a_second() -> None:
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i) for i in range(10)]
    for i, frame in enumerate(frames):
        alive = [pid for pid in (6, 7, 8) if not (pid == 8 and i > 3) and not (pid == 7 and i == 5)]
        frame.procs = [sample(pid, i, 1 + (pid == 7 and i > 5)) for pid in alive]
    frames[0].infos = [ProcInfo(pid, 1) for pid in (6, 7, 8)]
    frames[4].gone, frames[5].gone, frames[6].infos = [8], [7], [ProcInfo(7, 2)]
    one, all_of_them = Board(), Board()
    merged = merge_second(frames)
    for frame in frames:
        all_of_them.fold(frame)
    for frame in merged:
        one.fold(frame)
    assert standing(one) == standing(all_of_them)
    assert one.procs.keys() == {6, 7}
    waits = {(met.pid, met.syscall): met.times for met in merged[-1].met}
    assert waits == {(6, 0): 5, (6, 1): 4, (7, 1): 3}


def test_pairs_that_are_forgotten_and_meet_again_and_threads_that_are_gone() -> None:
    def frame(i: int, **told: Any) -> Frame:
        return Frame(i, START_NS + i * 100 * MS, key=not i, probes=Probes(START_NS + i * 100 * MS, **told))

    def thread(tid: int, longest: int) -> SchedThread:
        return SchedThread(tid, tid, 5, 5, 5, 5, 0, 1, 1, longest)

    frames = [
        frame(0, threads=[thread(1, 9), thread(2, 1), thread(3, 1)], preempts=[Preempt(1, 2, 2, 10, 1), Preempt(1, 3, 3, 10, 1)]),
        frame(1, forgotten=[1 | 2 << 32, 1 | 3 << 32]),
        frame(2, threads=[thread(1, 4)], preempts=[Preempt(1, 2, 2, 3, 1)], gone=[3], share=0.25),
    ]
    one, all_of_them = Board(), Board()
    for told in frames:
        all_of_them.fold(told)
    [merged] = merge_second(frames)
    one.fold(merged)
    assert standing(one) == standing(all_of_them)
    assert one.threads[1].max_run_delay_ns == 9
    assert one.switch_share == 0.25
    assert one.preempts.keys() == {(1, 2)}


def test_what_keeps_its_own_time_has_it() -> None:
    frames = [Frame(i, START_NS + i * 100 * MS) for i in range(10)]
    for i in (1, 4, 8):
        frames[i].sampled = [MainSamples(5, i * 100)]
    frames[3].host, frames[9].host = Host(frames[3].t_ns, load1=1.5, ctxt=5), Host(frames[9].t_ns, ctxt=9)
    merged = merge_second(frames)
    assert [(one.seq, one.ticks) for one in merged] == [(1, 0), (3, 0), (4, 0), (8, 0), (9, 10)]
    assert [one.sampled[0].watched_ns for one in merged if one.sampled] == [100, 400, 800]
    assert merged[1].host == Host(frames[3].t_ns, load1=1.5)
    assert merged[-1].host == frames[9].host


def test_a_minute_has_the_mean_of_what_gpus_read() -> None:
    seconds, minutes, told = Seconds(), Minutes(), list[Frame]()
    frames = list(Session(1, 4, threads=2).frames(2000, key_every=100))
    for frame in frames:
        for merged in seconds.add(frame):
            told += minutes.add(merged)
    assert [frame.key for frame in told] == [True, False, False]
    of_first = [frame for frame in frames if frame.t_ns <= told[0].t_ns]
    util = [gpu.util_pct for frame in of_first for gpu in frame.gpus if gpu.util_pct is not None]
    assert told[0].gpus[0].util_pct == pytest.approx(sum(util) / len(util), rel=0.01)
    assert told[0].ticks == len(of_first) == 600
    assert told[0].procs[0].oncpu_ns == of_first[-1].procs[0].oncpu_ns


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Frame]]:
    """Three minutes, with all tiers."""
    path = tmp_path_factory.mktemp("tiers") / "long.gputop"
    frames = [coarse(frame) for frame in Session(1, 4, threads=2).frames(1800)]
    writer = Writer(str(path), HEADER, minutes=True)
    for frame in frames:
        writer.add(frame)
    writer.close()
    return path, frames


@pytest.mark.parametrize("indexed", [True, False])
def test_a_recording_is_read_by_each_tier(long: tuple[Path, list[Frame]], indexed: bool, tmp_path: Path) -> None:
    path, frames = long
    if not indexed:
        data = path.read_bytes()
        path = tmp_path / "cut.gputop"
        path.write_bytes(data[:-100])
    with Recording(str(path)) as recording:
        ticks = list(recording.frames())
        assert ticks == frames
        for tier, count, least in ((SECONDS, 180, 1), (MINUTES, 3, 100)):
            merged = [frame for frame in recording.frames(tier=tier) if frame.ticks >= least]
            assert abs(len(merged) - count) <= count // 60 + 12  # the first second has its ticks, a key frame ends a second
            assert merged[-1].t_ns == frames[-1].t_ns or not indexed
            assert standing(recording.board_at(merged[50 % len(merged)].t_ns, tier))["procs"].keys() == {p.pid for p in frames[0].procs}
        seconds = list(recording.frames(tier=SECONDS))
        assert [frame.t_ns for frame in seconds] == sorted({frame.t_ns for frame in seconds})
        assert not recording.missing
        assert recording.tier_at(recording.end_ns) == TICKS


def test_damage_is_found_in_one_pass_as_in_the_blocks_of_each_tier(long: tuple[Path, list[Frame]], tmp_path: Path) -> None:
    good, path, rng, damaged = long[0].read_bytes(), tmp_path / "damaged.gputop", random.Random(7), 0
    for i in range(40):
        data, at = bytearray(good), rng.randrange(2000, len(good))
        if i % 2:
            data[at] ^= 1 << rng.randrange(8)
        elif i % 4:
            data[at : at + 3000] = b""
        else:
            source = rng.randrange(2000, at)
            data[at:at] = data[source : source + 4000]
        path.write_bytes(data)
        with Recording(str(path)) as verified, Recording(str(path)) as read, Parts([Recording(str(path))], []) as parts, open(path) as file:
            verified.verify()
            parts.verify()
            assert list(parts.lost.values()) == list(verified.lost.values())
            for block in (block for tier in TIERS for chunk in read.chunks(tier) for block in chunk.blocks()):
                with suppress(FormatError):
                    payload_at(file.fileno(), block.place)
                    continue
                block.file.give_up(block.place)
            assert read.lost == verified.lost
            damaged += bool(verified.lost)
    assert damaged > 30


def test_what_is_killed_is_read_by_ticks_where_it_has_no_seconds(tmp_path: Path) -> None:
    frames = [coarse(frame) for frame in Session(1, 3, threads=2).frames(705)]
    record(tmp_path / "a.gputop", frames, close=False)
    with Recording(str(tmp_path / "a.gputop")) as recording:
        seconds = list(recording.frames(tier=SECONDS))
        assert seconds[-1] == frames[699]
        assert not recording.missing


@pytest.mark.soak
def test_what_grows_or_was_killed_is_read_by_seconds_without_a_loss(tmp_path: Path) -> None:
    """Ticks follow the last seconds: they begin before these end, or within one of which only a part is written."""
    path, frames = tmp_path / "a.gputop", list(Session(1, 3, threads=2).frames(840))
    writer = Writer(str(path), HEADER)
    for i, frame in enumerate(frames):
        writer.add(frame)
        if i % 10 != 9 or i < 580:
            continue
        with Recording(str(path)) as recording:
            ticks, seconds = list(recording.frames()), list(recording.frames(tier=SECONDS))
            assert (recording.lost, recording.missing) == ({}, {})
            assert sum(frame.ticks for frame in seconds) == len(ticks) == i + 1
            assert [frame.t_ns for frame in seconds] == sorted({frame.t_ns for frame in seconds})
            assert seconds[-1] == ticks[-1]
            assert len(seconds) < len(ticks) - 300
    writer.close()


def test_seconds_and_minutes_that_grow_past_an_index_are_found_whole(tmp_path: Path) -> None:
    path, frames = tmp_path / "a.gputop", list(Session(1, 2, threads=1, probes=False).frames(3600, 500 * MS, key_every=20))
    writer = Writer(str(path), HEADER, minutes=True)
    for frame in frames:
        writer.add(frame)
    with Recording(str(path)) as recording:  # as a kill leaves it: five indices, none at its end
        minutes = [frame for frame in recording.frames(tier=MINUTES) if frame.ticks > 100]
        assert len(minutes) >= 20
        assert sum(frame.ticks for frame in recording.frames(tier=SECONDS)) >= len(frames) - 2
    writer.close()


def _looks_s(recording: Recording, following: Following) -> list[float]:
    """When a whole recording is looked at, s since it began."""
    boards = judged(following, recording, recording.start_ns, recording.end_ns + 1)
    return [(board.t_ns - recording.start_ns) / 1e9 for board in boards]


def _trained(util_at: Callable[[int], float], seconds: int) -> Iterator[Frame]:
    """Frames of half seconds: the GPU's utilization is ``util_at(second)``."""
    scene = training(run=0.2)
    for i in range(2 * seconds):
        scene.gpus[0]["util_pct"] = util_at(i // 2)
        frame = scene.next_frame(0.5)
        frame.key = i % 20 == 0
        scene.board.fold(frame)
        yield frame


def test_of_a_long_stretch_what_does_not_turn_is_looked_at_seldom(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    record(path, _trained(lambda second: 95.0 - second % 3, 2000), Scene().board.header)
    with Recording(str(path)) as recording:
        following = Following()
        looks_s = _looks_s(recording, following)
    assert len(looks_s) == pytest.approx(2000 * SECOND / SELDOM_NS, abs=8)
    assert max(later - before for before, later in pairwise(looks_s)) <= SELDOM_NS / SECOND + 1
    assert following.engine.ledger.gpu_total_s == pytest.approx(2000, rel=0.02)  # no second goes unseen


@pytest.mark.parametrize("lasts_s", [4, 13, 60])
def test_of_a_long_stretch_a_turn_is_looked_at_before_and_behind_it(lasts_s: int, tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    begins_s, ends_s = 1003, 1003 + lasts_s
    record(path, _trained(lambda second: 30.0 if begins_s <= second < ends_s else 95.0, 2000), Scene().board.header)
    with Recording(str(path)) as recording:
        following = Following()
        looks_s = _looks_s(recording, following)
        lost_s = following.engine.explain().ledger.gpu_lost_s
    for turn_s in (begins_s, ends_s)[: 1 + (lasts_s > TURNS_NS / SECOND)]:  # after one, looks are often
        assert any(turn_s - 2 <= look <= turn_s for look in looks_s)
        assert sum(turn_s < look <= turn_s + 7 for look in looks_s) >= 3
    assert lost_s == pytest.approx(0.05 * (2000 - lasts_s) + 0.7 * lasts_s, rel=0.03)
    assert len(looks_s) <= 2000 * SECOND / SELDOM_NS + 24


@pytest.mark.soak
@pytest.mark.parametrize("path", sorted(DATA.glob("*.gputop")), ids=lambda path: path.stem)
def test_kept_recordings_are_judged_alike_by_seconds(path: Path, tmp_path: Path) -> None:
    with Recording(str(path)) as kept:
        record(tmp_path / "a.gputop", list(kept.frames()), kept.header)
    with Recording(str(tmp_path / "a.gputop")) as recording:
        merged = [frame.ticks for frame in recording.frames(tier=SECONDS)][10:]
        assert sum(merged) > 5 * sum(ticks > 0 for ticks in merged)
        found = []
        for tier, every_ns in ((TICKS, FEED_EVERY_NS), (SECONDS, SECOND)):
            following = Following(Board(header=recording.header), every_ns=every_ns)
            assert list(following.through(recording.frames(tier=tier)))
            found.append(following.engine.explain())
    ticks, seconds = found
    assert [one.cause for one in ticks.incidents] == [one.cause for one in seconds.incidents]
    apart_s = max(0.5, 0.05 * ticks.ledger.gpu_lost_s)  # what changes is found up to a second later, and booked to what was before
    for cause, lost_s in ticks.ledger.by_cause.items():
        assert seconds.ledger.by_cause.get(cause, 0.0) == pytest.approx(lost_s, rel=0.1, abs=apart_s), cause
