"""Ten minutes in memory: any moment can be seen again, memory is bounded, and `R` writes them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from gputop.model.board import Board
from gputop.model.frame import Frame, Stack
from gputop.recording.chunks import Decoder
from gputop.recording.format import pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.recording.ring import Ring, write_blocks
from gputop.recording.shelf import Shelved
from gputop.stream.session import Session as Watched
from gputop.system.errors import UserError
from gputop.system.output import create, unused
from tests.recording.made import HEADER, SECOND, Session


def test_any_moment_shows_what_folding_every_frame_shows() -> None:
    ring, board = Ring(HEADER), Board(header=HEADER)
    boards = {}
    for frame in Session(procs=6).frames(350):
        ring.add(frame)
        board.fold(frame)
        boards[frame.t_ns] = board.snapshot()
    for t_ns in [*list(boards)[::13], *list(boards)[::-37], list(boards)[-1]]:
        seen = ring.board_at(t_ns + 5)
        assert seen.seq == boards[t_ns].seq
        assert seen.procs == boards[t_ns].procs
        assert seen.threads == boards[t_ns].threads
        assert seen.gpus[0].values == boards[t_ns].gpus[0].values
    assert ring.board_at(ring.start_ns - 1).seq == -1


def test_the_newest_second_is_seen_while_it_grows() -> None:
    ring = Ring(HEADER)
    for frame in Session(procs=2).frames(125):
        ring.add(frame)
        assert ring.board_at(frame.t_ns).seq == frame.seq


def test_a_live_frame_is_kept_as_it_came_and_one_that_was_added_to_as_it_is() -> None:
    session, decoder = Watched(), Decoder()
    sent = list(Session(procs=3).frames(30))
    for item in decoder.feed(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in sent)):
        if isinstance(item, Frame):
            assert item.packed == msgspec.msgpack.encode(item)
            if item.seq == 20:
                session.add_stacks([Stack(100, 100, item.t_ns, python=["loss (train.py:7)"])])
        session.ingest(item)
    kept = list(session.ring.frames(0, 1 << 62))
    assert [frame for frame in kept if frame.seq != 20] == [frame for frame in sent if frame.seq != 20]
    assert kept[20].stacks == [Stack(100, 100, sent[20].t_ns, python=["loss (train.py:7)"])]


def test_old_chunks_leave_and_the_rest_begins_with_a_key_frame() -> None:
    ring = Ring(HEADER, window_ns=30 * SECOND)
    for frame in Session(procs=2).frames(1000):
        ring.add(frame)
    assert 30 <= (ring.end_ns - ring.start_ns) / SECOND <= 41
    first = next(ring.frames(0, ring.end_ns))
    assert first.key
    assert first.t_ns == ring.start_ns


def test_a_reader_of_a_stream_takes_what_is_kept_as_it_is() -> None:
    """So a node hands over its past without unpacking it: from a key frame on."""
    ring = Ring(HEADER)
    for frame in Session(procs=2).frames(300):
        ring.add(frame)
    frames = list(ring.frames(0, ring.end_ns + 1))
    keys = [frame.t_ns for frame in frames if frame.key]
    decoder = Decoder()
    read = decoder.feed(pack_header(HEADER) + b"".join(block.read() for block in ring.sealed(keys[-1] + 1)))
    assert [item.t_ns for item in read if isinstance(item, Frame)] == [frame.t_ns for frame in frames if frame.t_ns >= keys[-1]]
    assert [block.read() for block in ring.sealed(-1)] == [block.read() for block in ring.sealed()]


def test_many_seconds_take_less_together(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = list(Session(procs=3).frames(201))
    ring, apart = Ring(HEADER), Ring(HEADER)
    for frame in frames:
        ring.add(frame)
    assert len(ring.sealed()) == 3
    monkeypatch.setattr("gputop.recording.ring.PIECE_BYTES", 1)
    for frame in frames:
        apart.add(frame)
    assert len(apart.sealed()) == len(frames)
    assert ring.held_bytes < 0.6 * apart.held_bytes
    assert list(ring.frames(0, ring.end_ns + 1)) == list(apart.frames(0, ring.end_ns + 1)) == frames


def test_memory_is_bounded_by_bytes() -> None:
    ring = Ring(HEADER, max_bytes=100_000)
    for frame in Session(procs=30).frames(600):
        ring.add(frame)
        assert ring.held_bytes <= 100_000 + 20_000
    assert ring.end_ns - ring.start_ns > SECOND


def test_memory_is_bounded_without_any_key_frame() -> None:
    ring = Ring(HEADER, max_bytes=50_000)
    for frame in Session(procs=30).frames(600, key_every=1 << 30):
        ring.add(frame)
        assert ring.held_bytes <= 70_000


def test_time_that_runs_backwards_begins_anew() -> None:
    ring = Ring(HEADER)
    for frame in Session(procs=2).frames(50):
        ring.add(frame)
    later = ring.end_ns
    for frame in Session(procs=2).frames(3):
        ring.add(frame)
    assert ring.end_ns < later
    assert len(list(ring.frames(0, later + 1))) == 3


def test_what_is_saved_is_a_stream_of_the_same_frames(tmp_path: Path) -> None:
    ring, frames = Ring(HEADER), list(Session(procs=5).frames(264))
    for frame in frames:
        ring.add(frame)
    path = tmp_path / "last.gputop"
    size = write_blocks(str(path), create(str(path)), HEADER, ring.sealed(), ring.end_ns)
    assert size == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    decoder = Decoder()
    assert decoder.feed(path.read_bytes()) == [HEADER, *frames]
    assert decoder.problem == ""
    with Recording(str(path)) as recording:
        assert (recording.start_ns, recording.end_ns) == (frames[0].t_ns, frames[-1].t_ns)
        assert [chunk.t_ns for chunk in recording.chunks()] == [frame.t_ns for frame in frames if frame.key]
        assert recording.marks == [mark for frame in frames for mark in frame.marks]
        assert recording.problem == ""


@pytest.mark.parametrize("kind", ["file", "directory", "link", "no such directory"])
def test_what_is_in_the_way_is_said_and_left_alone(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "out.gputop", tmp_path / "other"
    other.write_text("mine")
    if kind == "file":
        path.write_text("mine")
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(other)
    else:
        path = tmp_path / "no" / "out.gputop"
    with pytest.raises(UserError, match=r"exists already|directory|is a link"):
        create(str(path))
    assert other.read_text() == "mine"


def test_a_full_disk_leaves_no_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gputop.recording.ring.write_all", full)
    path = str(tmp_path / "out.gputop")
    with pytest.raises(UserError, match="No space left"):
        write_blocks(path, create(path), HEADER, [Shelved(b"block")], 0)
    assert not list(tmp_path.iterdir())


def test_names_of_the_same_second_do_not_clash(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        names.append(unused(str(tmp_path / "now")))
        os.close(create(names[-1]))
    assert [Path(name).name for name in names] == ["now.gputop", "now-2.gputop", "now-3.gputop"]
