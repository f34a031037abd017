"""Rotation that goes on in the middle of a chunk: the bound holds, and each file stands by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gputop import cli
from gputop.model.board import Board
from gputop.model.frame import Frame
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.recording.writer import Rotation
from tests.recording.made import HEADER, Session, record

MAX_BYTES = 120_000


def growing() -> list[Frame]:
    """Some seconds of four processes, and then of a crowd: a chunk many times as large as those before."""
    few, crowd = Session(1, 4, seed=1), Session(2, 90, threads=6, seed=2)
    frames = list(few.frames(200))
    crowd.seq, crowd.t_ns = few.seq, few.t_ns
    return frames + list(crowd.frames(190))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """The same in one file, and rotated."""
    folder, frames = tmp_path_factory.mktemp("rotation"), growing()
    record(folder / "whole.gputop", frames)
    files = Rotation(str(folder / "run.gputop"), HEADER, MAX_BYTES, 0)
    for frame in frames:
        files.add(frame)
    files.close()
    return folder / "whole.gputop", sorted(folder.glob("run*"), key=lambda path: path.stat().st_mtime_ns)


def test_no_file_is_larger_than_was_asked_for(made: tuple[Path, list[Path]]) -> None:
    sizes = [path.stat().st_size for path in made[1]]
    assert len(sizes) > 2
    assert max(sizes) <= MAX_BYTES
    assert max(sizes) > MAX_BYTES // 2


def told(board: Board) -> list[object]:
    """What stands; of threads what goes on."""
    threads = {tid: (thread.oncpu_ns, thread.vol, thread.invol, thread.hist) for tid, thread in board.threads.items()}
    gpus = {index: (gpu.values, gpu.read_ns, gpu.missing) for index, gpu in board.gpus.items()}
    calls = {who: (call.count, call.total_ns) for who, call in board.calls.items()}
    return [
        board.seq,
        board.infos,
        board.procs,
        gpus,
        board.sources,
        threads,
        board.preempts,
        board.wakeups,
        calls,
        board.thread_calls,
        board.launches,
    ]


def test_each_begins_with_all_that_stood(made: tuple[Path, list[Path]]) -> None:
    begins_within = 0
    with Recording(str(made[0])) as whole:
        for path in made[1]:
            with Recording(str(path)) as part:
                assert part.problem == ""
                assert told(part.board_at(part.start_ns)) == told(whole.board_at(part.start_ns))
                begins_within += part.start_ns not in {chunk.t_ns for chunk in whole.chunks()}
    assert begins_within


QUESTIONS = [
    "SELECT pid, sum(vol) a, sum(oncpu_s) b, count(*) n, sum(thread_switches) c, max(stall_ms) d FROM proc GROUP BY pid ORDER BY pid",
    "SELECT call, sum(calls) n, round(sum(total_ms), 6) ms, max(max_ms) FROM sync GROUP BY call",
    "SELECT victim_tid, sum(times) n, round(sum(lost_s), 6) s FROM preempt GROUP BY 1 ORDER BY 1",
    "SELECT count(power_w) n, sum(power_w) w, sum(energy_j) j FROM gpu",
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_together_they_answer_as_one(made: tuple[Path, list[Path]], question: str, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*paths: Path) -> list[dict[str, Any]]:
        assert cli.main(["query", *map(str, paths), question, "--json"]) == 0
        return list(json.loads(capsys.readouterr().out))

    for one, together in zip(ask(made[0]), ask(*made[1]), strict=True):
        assert together == pytest.approx(one)


def test_no_frame_is_missing_or_told_twice(made: tuple[Path, list[Path]]) -> None:
    with Recording(str(made[0])) as whole, open_recording(list(map(str, made[1]))) as parts:
        assert [frame.seq for frame in parts.frames()] == [frame.seq for frame in whole.frames()]
