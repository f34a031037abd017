"""A recording read a second at a time leaves the same behind as one read frame by frame: board, verdicts, incidents."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputop.diagnosis import Engine
from gputop.diagnosis.waits import kinds
from gputop.model.board import Board
from gputop.model.frame import CgroupSample, Frame, Gpu, Host, Preempt, Probes, ProcInfo, ProcSample, SchedThread
from gputop.recording.columns.decode import open_table
from gputop.recording.columns.encode import encode
from gputop.recording.columns.layout import ColumnError
from gputop.recording.columns.thin import thin
from gputop.recording.format import pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.session.hindsight import hindsight
from tests.recording.made import HEADER, MS, SECOND, START_NS, Session
from tests.recording.test_columns import coarse

KEPT = sorted(Path(__file__).with_name("data").glob("*.gputop"))


def standing(board: Board) -> dict[str, Any]:
    """Everything on a board but what a thinned reading leaves out."""
    plain = {name: getattr(board, name) for name in ("seq", "t_ns", "infos", "procs", "host", "host_read_ns", "cgroups", "sources")}
    plain |= {"preempts": board.preempts, "wakeups": board.wakeups, "calls": board.calls}
    plain["gpus"] = {index: (gpu.values, gpu.read_ns, gpu.missing) for index, gpu in board.gpus.items()}
    plain["threads"] = {tid: msgspec.structs.replace(thread, hist={}) for tid, thread in board.threads.items()}
    return plain


def compare(path: Path) -> Engine:
    """Both readings side by side, fed to an engine each."""
    with Recording(str(path)) as recording:
        board, engine, other, judge = Board(header=recording.header), Engine(), Board(header=recording.header), Engine()
        frames = iter(recording.frames())
        for second in recording.seconds():
            for frame in second.frames:
                other.fold(frame)
            judge.look_back(second.frames, {pid: [kinds("")(*wait) for wait in waits] for pid, waits in second.waits.items()}, second.gpus)
            while board.t_ns < other.t_ns:
                frame = next(frames)
                board.fold(frame)
                engine.look(frame)
            assert standing(other) == standing(board)
            engine.feed(board)
            judge.feed(other)
            assert judge.verdict == engine.verdict
            assert judge.states == engine.states
        assert next(frames, None) is None
        assert judge.explain() == engine.explain()
        return judge


@pytest.mark.parametrize(("gpus", "procs", "probes"), [(1, 3, False), (2, 14, True), (8, 30, False)])
def test_the_same_is_left_behind_and_concluded(tmp_path: Path, gpus: int, procs: int, probes: bool) -> None:
    path = tmp_path / "s.gputop"
    writer = Writer(str(path), HEADER)
    for frame in Session(gpus, procs, threads=4, seed=6, probes=probes).frames(400):
        writer.add(frame)
    writer.close()
    assert compare(path).incidents


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_files_of_every_version_can_be_thinned(path: Path) -> None:
    compare(path)


def test_frames_that_stand_alone_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "plain.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames([coarse(frame)]) for frame in Session(1, 5).frames(60)))
    compare(path)


def test_a_stretch_begins_and_ends_within_blocks(tmp_path: Path) -> None:
    path = tmp_path / "s.gputop"
    writer = Writer(str(path), HEADER)
    for frame in Session(1, 4, threads=2).frames(200):
        writer.add(frame)
    writer.close()
    with Recording(str(path)) as recording:
        start, end = recording.start_ns + 2_530 * MS, recording.start_ns + 7_870 * MS
        board, other = recording.board_at(start - 1), recording.board_at(start - 1)
        for frame in recording.frames(start, end):
            board.fold(frame)
        for second in recording.seconds(start, end):
            for frame in second.frames:
                other.fold(frame)
        assert standing(other) == standing(board)


def folded(frames: list[Frame]) -> dict[str, Any]:
    board = Board()
    for frame in frames:
        board.fold(frame)
    return standing(board)


def thinned(frames: list[Frame]) -> list[Frame]:
    return thin(open_table(encode(frames))).frames


def sample(pid: int, i: int, start: int = 1) -> ProcSample:
    return ProcSample(pid, start, START_NS + i * 100 * MS, "S", i * MS, 0, 0, 1, vol=i)


def test_who_ends_and_who_comes_back_within_a_second() -> None:
    rng = random.Random(3)
    for _ in range(200):
        frames = []
        for i in range(10):
            gone = [pid for pid in range(4) if rng.random() < 0.1]
            present = [pid for pid in range(4) if rng.random() < 0.7]
            frames.append(Frame(i, START_NS + i * 100 * MS, gone=gone, procs=[sample(pid, i, i // 3) for pid in present],
                                infos=[ProcInfo(pid, i // 3) for pid in present if rng.random() < 0.3]))  # fmt: skip
        frames = [coarse(frame) for frame in frames]
        assert folded(thinned(frames)) == folded(frames)


def test_threads_that_are_gone_take_their_pairs_along_and_a_number_used_again_is_refused() -> None:
    def frame(i: int, **probes: Any) -> Frame:
        return Frame(i, START_NS + i * 100 * MS, probes=Probes(START_NS + i * 100 * MS, **probes))

    one, pair = [SchedThread(5, 5, i * MS, 0, 0, 0, 0, i, 0, 0) for i in range(10)], Preempt(5, 6, 6, MS, 1)
    frames = [coarse(f) for f in (frame(0, threads=[one[0]], preempts=[pair]), frame(1, threads=[one[1]]), frame(2, gone=[5]), frame(3))]
    assert folded(thinned(frames)) == folded(frames)
    assert folded(frames)["threads"] == {}
    for late in ({"threads": [one[3]]}, {"preempts": [pair]}):
        with pytest.raises(ColumnError):
            thinned([*frames[:3], frame(3, **late)])


def test_pairs_that_are_forgotten_and_meet_again_within_a_second() -> None:
    rng = random.Random(5)
    for _ in range(200):
        frames = []
        for i in range(10):
            now = START_NS + i * 100 * MS
            met = [Preempt(5, other, other, (i + 1) * MS, i + 1) for other in range(4) if rng.random() < 0.5]
            forgotten = [5 | other << 32 for other in range(4) if rng.random() < 0.2]
            frames.append(coarse(Frame(i, now, key=i == 0, probes=Probes(now, preempts=met, forgotten=forgotten))))
        assert folded(thinned(frames)) == folded(frames)


def test_what_is_read_at_several_paces_keeps_its_own_time() -> None:
    rng = random.Random(8)
    for _ in range(100):
        frames = []
        for i in range(10):
            now = START_NS + i * 100 * MS
            gpus = [Gpu(g, now + g * MS, util_pct=float(i), power_w=rng.choice((None, 90.5)),
                        temp_c=rng.choice((None, None, 40.0 + i)), missing=rng.choice(({}, {}, {"temp_c": "broken"})))
                    for g in range(2) for _ in range(rng.randrange(3))]  # fmt: skip
            groups = rng.choice((None, [CgroupSample("/a", 2, quota_cpus=1.5)], []))
            host = Host(now, ctxt=i, load1=rng.choice((None, 0.5)), cgroups=groups) if rng.random() < 0.7 else None
            frames.append(coarse(Frame(i, now, key=i == 0, gpus=gpus, host=host)))
        assert folded(thinned(frames)) == folded(frames)


def test_a_key_frame_within_a_block_is_refused() -> None:
    frames = list(Session(1, 2).frames(10))
    frames[4].key = True
    with pytest.raises(ColumnError):
        thinned(frames)


def test_hindsight_feeds_what_the_seconds_hold(tmp_path: Path) -> None:
    path = tmp_path / "s.gputop"
    writer = Writer(str(path), HEADER)
    for frame in Session(1, 6, threads=2).frames(300):
        writer.add(frame)
    writer.close()
    data = bytearray(path.read_bytes())
    at = int(len(data) * 0.6)
    data[at : at + 12_000] = bytes(12_000)  # more than a parity brings back
    path.write_bytes(data)
    with Recording(str(path)) as recording, Recording(str(path)) as other:
        engine, board, fed = Engine(), Board(header=recording.header), []
        for second in recording.seconds():
            for frame in second.frames:
                board.fold(frame)
            engine.look_back(second.frames, {pid: [kinds("")(*wait) for wait in waits] for pid, waits in second.waits.items()}, second.gpus)
            if second.frames:
                engine.feed(board)
                fed.append(board.t_ns)
        judge, again = Engine(), Board(header=other.header)
        assert [board.t_ns for board in hindsight(judge, again, other)] == fed
        assert judge.explain() == engine.explain()
        assert again.t_ns == board.t_ns
        assert "damaged" in other.problem
        assert other.problem == recording.problem


def test_runs_are_read_apart_and_make_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputop.recording.writer.RUN_NS", 9 * SECOND)
    path = tmp_path / "s.gputop"
    writer = Writer(str(path), HEADER)
    for frame in Session(1, 6, threads=2).frames(450):
        writer.add(frame)
    writer.close()
    start_ns, end_ns = START_NS + 3 * SECOND, START_NS + 41 * SECOND
    with Recording(str(path)) as recording:
        runs = recording.runs(start_ns, end_ns)
        assert [begin for begin, _ in runs[1:]] == [end for _, end in runs[:-1]]
        assert (runs[0][0], runs[-1][1], len(runs)) == (start_ns, end_ns, 5)
        whole, apart = list(recording.frames(start_ns, end_ns)), []
    for run in reversed(runs):
        with Recording(str(path)) as recording:
            apart[:0] = recording.frames(*run)
    assert apart == whole


def test_who_stops_listening_to_hindsight_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputop.recording.writer.RUN_NS", 20 * SECOND)  # several readers
    monkeypatch.setattr("gputop.session.ahead.PIPE_BYTES", 4096)  # the reader is soon ahead as far as it can be
    path = tmp_path / "s.gputop"
    writer = Writer(str(path), HEADER)
    for frame in Session(2, 20).frames(600):
        writer.add(frame)
    writer.close()
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    with Recording(str(path)) as recording:
        told = hindsight(Engine(), Board(header=recording.header), recording)
        next(told)
        assert children.read_text() != before
        told.close()
    assert children.read_text() == before
