"""Recordings written and read back: any moment, while they grow, and from whatever is left of them."""

from __future__ import annotations

import gzip
import lzma
import os
from pathlib import Path

import msgspec
import pytest
import zstandard

from gputop.model.board import Board
from gputop.model.frame import Frame, Header, ProcSample
from gputop.recording import writer
from gputop.recording.chunks import Decoder, pack_alone
from gputop.recording.format import KIND_HEADER, FormatError, flags_of, pack, pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.recording.ring import Ring
from gputop.recording.writer import Rotation, Writer, write_all
from gputop.system.errors import UserError
from gputop.system.text import file_size
from tests.recording.made import HEADER, SECOND, Session, record
from tests.recording.test_columns import coarse


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Frame]]:
    """Seven minutes: several references and index blocks. Short chunks make that quick."""
    path = tmp_path_factory.mktemp("recording") / "session.gputop"
    frames = [coarse(frame) for frame in Session(1, 4, threads=3).frames(1400, interval_ns=300_000_000, key_every=20)]
    record(path, frames)
    return path, frames


def test_what_was_written_is_read(session: tuple[Path, list[Frame]]) -> None:
    path, frames = session
    with Recording(str(path)) as recording:
        assert recording.header == HEADER
        assert list(recording.frames()) == frames
        assert (recording.start_ns, recording.end_ns) == (frames[0].t_ns, frames[-1].t_ns)
        assert recording.problem == ""
        assert [mark.text for mark in recording.marks] == [mark.text for frame in frames for mark in frame.marks]
        assert len(recording.marks) == 5
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_can_be_piped_as_a_stream(session: tuple[Path, list[Frame]]) -> None:
    path, frames = session
    decoder = Decoder()
    assert decoder.feed(path.read_bytes()) == [HEADER, *frames]
    assert decoder.problem == ""


def test_any_moment_shows_what_folding_every_frame_shows(session: tuple[Path, list[Frame]]) -> None:
    path, frames = session
    board, boards = Board(header=HEADER), []
    for frame in frames:
        board.fold(frame)
        boards.append(board.snapshot())
    with Recording(str(path)) as recording:
        for i in (0, 1, 700, 701, 702, 699, 640, 1399, 3, 1000):
            seen = recording.board_at(frames[i].t_ns)
            assert (seen.seq, seen.procs, seen.infos) == (boards[i].seq, boards[i].procs, boards[i].infos)
            assert seen.gpus[0].values == boards[i].gpus[0].values
        assert recording.board_at(frames[0].t_ns - 1).seq == -1
        assert recording.board_at(1 << 62).seq == frames[-1].seq


def test_a_stretch_of_time_is_read_alone(session: tuple[Path, list[Frame]]) -> None:
    path, frames = session
    with Recording(str(path)) as recording:
        assert list(recording.frames(frames[333].t_ns, frames[444].t_ns)) == frames[333:444]


def test_wall_clock_time_is_found(session: tuple[Path, list[Frame]]) -> None:
    with Recording(str(session[0])) as recording:
        unix_ns = HEADER.unix_ns + 60 * SECOND
        assert recording.t_ns_of(unix_ns) == HEADER.t_ns + 60 * SECOND
        assert recording.unix_ns_of(recording.t_ns_of(unix_ns)) == unix_ns


def test_a_growing_recording_is_read_as_it_grows(tmp_path: Path) -> None:
    path, frames = tmp_path / "growing.gputop", [coarse(frame) for frame in Session(1, 2).frames(400)]
    writer = Writer(str(path), HEADER)
    with Recording(str(path)) as recording:
        assert recording.growing
        assert recording.problem == "it holds no frames"
        seen: list[Frame] = []
        for frame in frames:
            writer.add(frame)
            if frame.seq % 30 == 29:
                assert recording.refresh()
                assert recording.end_ns == recording.board_at(1 << 62).t_ns
                seen = list(recording.frames())
                assert seen == frames[: len(seen)]
                assert len(seen) > frame.seq - 11
        writer.close()
        recording.refresh()
        assert list(recording.frames()) == frames
        assert not recording.growing
        assert [mark.text for mark in recording.marks] == ["epoch 0"]
        assert recording.problem == ""


@pytest.mark.parametrize("alone", [False, True])
def test_streams_of_the_collector_and_the_ring_are_recordings_too(tmp_path: Path, alone: bool) -> None:
    path, frames = tmp_path / "stream.gputop", list(Session(1, 3).frames(130))
    pieces = (
        pack_alone(msgspec.msgpack.encode([frame]), flags_of([frame]), frame.t_ns) if alone else pack_frames([frame]) for frame in frames
    )
    path.write_bytes(pack_header(HEADER) + b"".join(pieces))
    with Recording(str(path)) as recording:
        assert list(recording.frames()) == frames
        assert recording.board_at(frames[77].t_ns).procs.keys() == {proc.pid for proc in frames[0].procs}


def test_a_recording_begun_in_the_middle_starts_with_what_stands(tmp_path: Path) -> None:
    frames = [coarse(frame) for frame in Session(1, 3).frames(150)]
    ring = Ring(HEADER)
    for frame in frames[:130]:
        ring.add(frame)
    record(tmp_path / "r.gputop", [*ring.recent(), *frames[130:]])
    with Recording(str(tmp_path / "r.gputop")) as recording:
        assert list(recording.frames()) == frames[100:]


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "unreadable", "text", "empty", "newer", "nul"])
def test_what_is_no_recording_is_said_in_a_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x\x1b[2J.gputop"
    expect = {"missing": "No such file", "directory": "is a directory", "fifo": "no regular file", "unreadable": "Permission denied",
              "text": "no recording of gputop", "empty": "is empty", "newer": "newer gputop", "nul": "no file name"}[kind]  # fmt: skip
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "unreadable":
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        path.write_bytes(b"")
        path.chmod(0)
    elif kind != "missing":
        path.write_bytes({"text": b"#!/bin/sh\nexit 0\n" * 9, "empty": b"", "newer": pack_header(Header(major=3)), "nul": b""}[kind])
    with pytest.raises(FormatError, match=expect) as caught:
        Recording("a\0b" if kind == "nul" else str(path))
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "expect"),
    [
        (b"GPUTOP3\nanother layout" * 99, "newer gputop"),
        (b"GPUTOP12\n" + pack(KIND_HEADER, msgspec.msgpack.encode({"major": 12, "unix_ns": ["other", "types"]})), "newer gputop"),
        (gzip.compress(pack_header(HEADER)), "compressed"),
        (lzma.compress(pack_header(HEADER)), "compressed"),
        (zstandard.compress(pack_header(HEADER)), "compressed"),
    ],
    ids=["magic", "header", "gzip", "xz", "zstd"],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, data: bytes, expect: str) -> None:
    path = tmp_path / "x.gputop"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=expect):
        Recording(str(path))


def test_a_digit_of_the_magic_that_was_damaged_is_no_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "x.gputop"
    record(path, Session(1, 4, threads=3).frames(5))
    path.write_bytes(b"GPUTOP1\n" + path.read_bytes()[8:])
    with Recording(str(path)) as recording:
        assert len(list(recording.frames())) == 5


def test_rotation_bounds_each_file_and_their_number(tmp_path: Path) -> None:
    frames = [coarse(frame) for frame in Session(1, 4, threads=3).frames(1500, key_every=20)]
    files = Rotation(str(tmp_path / "run.gputop"), HEADER, max_bytes=60_000, max_files=3)
    add_all(files, frames)
    files.close()
    left = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(left) == 3
    assert all(path.stat().st_size <= 60_000 for path in left)
    seen: list[Frame] = []
    for path in left:
        with Recording(str(path)) as recording:
            seen += recording.frames()
            assert recording.problem == ""
    assert seen == frames[-len(seen) :]
    assert len(seen) == files.frames > 200


def test_a_file_that_somebody_emptied_is_no_success(tmp_path: Path) -> None:
    frames = list(Session(1, 4, threads=3).frames(50))
    writer = record(tmp_path / "run.gputop", frames[:30], close=False)
    os.truncate(tmp_path / "run.gputop", 0)
    with pytest.raises(UserError, match="emptied or cut"):
        add_all(writer, frames[30:])
    writer.close()
    assert "emptied or cut" in writer.problem


@pytest.mark.parametrize(("size_bytes", "said"), [(0, "0 KB"), (37_600, "38 KB"), (999_600, "1.0 MB"), (4_240_000, "4.2 MB")])
def test_the_size_of_a_file_is_said_with_two_digits(size_bytes: int, said: str) -> None:
    assert file_size(size_bytes) == said


def add_all(files: Rotation | Writer, frames: list[Frame]) -> None:
    for frame in frames:
        files.add(frame)


def test_rotation_takes_no_name_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run.2.gputop").write_text("mine")
    (tmp_path / "run.4.gputop").symlink_to("/nowhere")
    files = Rotation(str(tmp_path / "run.gputop"), HEADER, max_bytes=30_000, max_files=2)
    add_all(files, list(Session(1, 4).frames(1000, key_every=20)))
    files.close()
    assert (tmp_path / "run.2.gputop").read_text() == "mine"
    assert (tmp_path / "run.4.gputop").is_symlink()
    assert len(list(tmp_path.iterdir())) == 4


def test_rotation_goes_on_where_an_old_file_was_taken_away(tmp_path: Path) -> None:
    files = Rotation(str(tmp_path / "run.gputop"), HEADER, max_bytes=30_000, max_files=1)
    (tmp_path / "run.gputop").rename(tmp_path / "moved.gputop")
    add_all(files, list(Session(1, 4).frames(1000, key_every=20)))
    files.close()
    left = {path.name for path in tmp_path.iterdir()}
    assert "moved.gputop" in left
    assert len(left) == 2


def test_numbers_that_no_kernel_counts_to_are_kept_as_they_are(tmp_path: Path) -> None:
    frames = [Frame(i, i * 10_000, key=True, procs=[ProcSample(1, 1, 0, "S", 0, 0, 0, 1, timeslices=-(2**63), vol=9)]) for i in range(3)]
    record(tmp_path / "odd.gputop", frames)
    with Recording(str(tmp_path / "odd.gputop")) as recording:
        assert list(recording.frames()) == frames


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("cut", [0, 1])
def test_of_files_one_behind_the_other_the_first_is_read_and_the_rest_told(tmp_path: Path, other: bool, cut: int) -> None:
    first, second = tmp_path / "a.gputop", tmp_path / "b.gputop"
    frames = [coarse(frame) for frame in Session(1, 2).frames(150, key_every=50)]
    record(first, frames)
    record(second, [coarse(frame) for frame in Session(2, 5).frames(70, key_every=20)])
    whole = first.read_bytes()
    data = whole[: len(whole) - cut]
    first.write_bytes(data + (second.read_bytes() if other else whole))
    with Recording(str(first)) as recording:
        assert list(recording.frames()) == frames
        assert f"byte {len(data)} " in recording.problem
        assert ("cut short" in recording.problem) == bool(cut)
        assert not recording.refresh()
    first.write_bytes(first.read_bytes()[len(data) :])
    with Recording(str(first)) as recording:
        assert recording.problem == ""


@pytest.mark.parametrize(("allowed", "said"), [(0, "not written"), (1, "its frames are there")])
def test_what_the_end_of_a_file_had_no_room_for_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int, said: str) -> None:
    files = Rotation(str(tmp_path / "run.gputop"), HEADER, 1 << 40, 0)
    for frame in Session(1, 2).frames(25):
        files.add(frame)
    left = allowed

    def full(fd: int, data: bytes) -> None:
        nonlocal left
        if not left:
            raise OSError(28, "No space left on device")
        left -= 1
        write_all(fd, data)

    monkeypatch.setattr(writer, "write_all", full)
    files.close()
    assert "No space left" in files.problem
    assert said in files.problem
    with Recording(str(tmp_path / "run.gputop")) as recording:
        assert len(list(recording.frames())) == (25 if allowed else 20)
