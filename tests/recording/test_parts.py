"""Recordings that follow each other, as rotation leaves them, are read as if they were one."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputop import cli
from gputop.model.board import Board
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.recording.writer import Rotation, Writer
from gputop.stream.survey import survey
from gputop.system.errors import UserError
from tests.recording.made import HEADER, SECOND, Session, record


@dataclasses.dataclass
class Made:
    """The same session in one file, and rotated."""

    whole: str
    parts: list[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("parts")
    whole = Writer(str(folder / "whole.gputop"), HEADER)
    rotation = Rotation(str(folder / "run.gputop"), HEADER, max_bytes=50_000, max_files=0)
    for frame in Session(1, 4, threads=3).frames(1000, interval_ns=420_000_000, key_every=20):
        whole.add(frame)
        rotation.add(frame)
    whole.close()
    rotation.close()
    parts = sorted(map(str, folder.glob("run*.gputop")))
    assert len(parts) > 3
    random.Random(1).shuffle(parts)
    return Made(str(folder / "whole.gputop"), parts)


def test_frames_times_and_markers_are_those_of_the_whole(made: Made) -> None:
    with Recording(made.whole) as whole, open_recording(made.parts) as parts:
        assert (parts.start_ns, parts.end_ns) == (whole.start_ns, whole.end_ns)
        assert list(parts.frames()) == list(whole.frames())
        assert [mark.text for mark in parts.marks] == [mark.text for mark in whole.marks]
        assert parts.problem == ""
        assert not parts.growing
        assert len(parts.chunks()) == len(whole.chunks())
        assert [chunk.t_ns for chunk in parts.chunks()] == [chunk.t_ns for chunk in whole.chunks()]
        assert parts.chunks()[-1].t_ns == whole.chunks()[-1].t_ns


def standing(board: Board) -> dict[str, Any]:
    """Everything on a board, GPUs by what they hold."""
    names = "seq", "t_ns", "infos", "procs", "host", "cgroups", "sources", "preempts", "wakeups", "calls", "threads"
    gpus = {index: (gpu.values, gpu.read_ns, gpu.missing) for index, gpu in board.gpus.items()}
    return {name: getattr(board, name) for name in names} | {"gpus": gpus}


def test_any_moment_is_that_of_the_whole(made: Made) -> None:
    rng = random.Random(3)
    with Recording(made.whole) as whole, open_recording(made.parts) as parts:
        edges = [part.start_ns for part in map(Recording, made.parts)]
        for t_ns in [*edges, *(edge - 1 for edge in edges), *(rng.randrange(whole.start_ns, whole.end_ns) for _ in range(20))]:
            assert standing(parts.board_at(t_ns)) == standing(whole.board_at(t_ns))
        assert parts.board_at(whole.start_ns - 1) == Board(header=HEADER)


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    "command",
    [
        ["query", "--json", "SELECT name, round(sum(cpu_s), 6), sum(switches) FROM proc GROUP BY 1 ORDER BY 1"],
        pytest.param(["query", "--json", "--fine", "SELECT name, sum(cpu_s) s, count(*) n FROM proc GROUP BY 1 ORDER BY 1"], marks=SOAK),
        ["query", "--json", "SELECT culprit_pid, round(sum(lost_s), 6), sum(times) n FROM preempt GROUP BY 1 ORDER BY 1"],
        ["query", "--json", "--last", "100", "SELECT count(*) n, min(t_s) FROM gpu"],
        ["explain", "--json"],
        pytest.param(["explain", "--json", "--fine"], marks=SOAK),
        pytest.param(["explain", "--json", "--from", "100", "--until", "300"], marks=SOAK),
    ],
)
def test_every_answer_is_that_of_the_whole(made: Made, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for files in ([made.whole], made.parts):
        name, *rest = command
        assert cli.main([name, *rest[:-1], *files, rest[-1]] if name == "query" else [name, *files, *rest]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    if command == ["explain", "--json"]:  # a second in which a part ends is two frames, so its looks come at other moments
        for answer in answers:
            lost_s = answer["ledger"].pop("gpu_lost_s")
            assert lost_s == pytest.approx(answers[0]["ledger"].get("gpu_lost_s", lost_s), rel=0.05)
        answers = [answer["verdict"]["cause"] for answer in answers]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("command", "question"), [("query", ["SELECT count(*) n FROM gpu"]), ("explain", [])])
def test_flags_may_stand_anywhere_between_the_files(
    made: Made, command: str, question: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = made.parts
    said = []
    for arguments in (
        ["--json", "--last", "100", *made.parts, *question], [*made.parts, "--last", "100", *question, "--json"],
        [first, "--json", *others, "--last", "100", *question], ["--json", "--last", "100", "--", *made.parts, *question],
    ):  # fmt: skip
        assert cli.main([command, *arguments]) == 0
        said.append(capsys.readouterr().out)
    assert len(set(said)) == 1


def test_a_replay_goes_through_all_of_them(made: Made) -> None:
    with open_recording(made.parts) as recording, Recording(made.whole) as whole:
        frames = list(recording.frames())
        assert frames == list(whole.frames())
    *_, last = survey(made.parts)
    assert last.until_ns == frames[-1].t_ns


def test_damage_in_any_part_is_said_by_its_name(made: Made, tmp_path: Path) -> None:
    copies = [tmp_path / Path(part).name for part in made.parts]
    for part, copy in zip(made.parts, copies, strict=True):
        copy.write_bytes(Path(part).read_bytes())
    hurt = max(copies, key=lambda copy: copy.stat().st_size)
    data = bytearray(hurt.read_bytes())
    data[8_000:16_000] = bytes(8_000)
    hurt.write_bytes(data)
    with open_recording([str(copy) for copy in copies]) as parts:
        assert list(parts.frames())
        assert parts.problem.startswith(f"{hurt}: ")
        assert "damaged" in parts.problem
        assert sum(parts.lost.values()) >= 8_000


def test_files_that_do_not_follow_each_other_are_refused(made: Made, tmp_path: Path) -> None:
    other = tmp_path / "other.gputop"
    record(other, list(Session(1, 2).frames(30)), msgspec.structs.replace(HEADER, boot_id="another"))
    with pytest.raises(UserError, match="no clock in common"):
        open_recording([made.whole, str(other)])
    with pytest.raises(UserError, match="the same time"):
        open_recording([made.whole, made.parts[0]])
    with pytest.raises(UserError, match="the same time"):
        open_recording([made.whole, made.whole])
    with pytest.raises(UserError, match="absent"):
        open_recording([made.whole, str(tmp_path / "absent.gputop")])


def test_a_part_without_frames_is_passed_over(made: Made, tmp_path: Path) -> None:
    empty = tmp_path / "empty.gputop"
    Writer(str(empty), HEADER).close()
    with open_recording([*made.parts, str(empty)]) as parts, Recording(made.whole) as whole:
        assert (parts.start_ns, parts.end_ns) == (whole.start_ns, whole.end_ns)
        assert "holds no frames" in parts.problem


def test_an_empty_file_among_them_is_left_out_and_said(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (empty := tmp_path / "empty.gputop").touch()
    with open_recording([str(empty), *made.parts]) as parts, Recording(made.whole) as whole:
        assert list(parts.frames()) == list(whole.frames())
        assert parts.problem == f"{empty} is empty and left out"
    assert cli.main(["query", made.whole, str(empty), "SELECT 1 one"]) == 0
    assert f"{empty} is empty" in capsys.readouterr().err
    with pytest.raises(UserError, match="the file is empty"):
        open_recording([str(empty), str(empty)])


def test_the_newest_may_still_grow(tmp_path: Path) -> None:
    frames = list(Session(1, 2).frames(600))
    first, second = tmp_path / "run.gputop", tmp_path / "run.2.gputop"
    record(first, frames[:300])
    writer = Writer(str(second), HEADER)
    for frame in frames[300:400]:
        writer.add(frame)
    writer.flush()
    with open_recording([str(first), str(second)]) as parts:
        assert parts.growing
        assert parts.end_ns <= frames[400].t_ns
        for frame in frames[400:]:
            writer.add(frame)
        writer.close()
        assert parts.refresh()
        assert parts.end_ns > frames[400].t_ns + 10 * SECOND
        assert not parts.growing
