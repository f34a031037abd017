"""Recordings of every shape with holes at every edge: what a parity covers comes back, at their beginning and end too."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from errno import EIO
from pathlib import Path

import pytest

from gputop.model.frame import Frame, Mark
from gputop.recording.format import HEAD, KIND_FRAMES, KIND_PARITY, pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.recording.scan import Place, scan
from tests.recording.made import HEADER, Session, record
from tests.recording.test_columns import coarse
from tests.recording.test_runs import places

HOLE = 4096
SHAPES: dict[str, Callable[[], list[Frame]]] = {
    "short": lambda: list(Session(0, 1, threads=1, probes=False).frames(45)),
    "two groups in a run": lambda: list(Session(4, 60, threads=3).frames(300, key_every=10**9)),
    "runs without references": lambda: list(Session(1, 3, threads=1, probes=False).frames(1205, key_every=10**9)),
}


def holed(path: Path, at: int, size: int = HOLE) -> None:
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), bytes(size), at)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_lost_disk_block_costs_nothing_at_any_edge(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "a.gputop"
    frames = [coarse(frame) for frame in SHAPES[shape]()]
    record(path, frames)
    good, blocks = path.read_bytes(), places(path)
    rng = random.Random(3)
    first = next(place.offset for place in blocks if place.head.kind == KIND_FRAMES)
    parities = [place for place in blocks if place.head.kind == KIND_PARITY]
    edges = [edge + by for place in parities for edge in (place.offset, place.end) for by in (-HOLE + 40, -HOLE // 2, -50, 0)]
    for at in sorted({min(max(at, first), parities[-1].end - HOLE) for at in (*edges, *rng.choices(range(first, len(good)), k=6))}):
        holed(path, at)
        with Recording(str(path)) as recording:
            assert len(list(recording.frames())) == len(frames), at
        path.write_bytes(good)


def marked(path: Path) -> tuple[list[Frame], list[Place]]:
    frames = [coarse(frame) for frame in Session(1, 3, threads=2).frames(900)]
    frames[333].marks = [Mark(frames[333].t_ns, "here")]
    record(path, frames)
    return frames, [place for place in places(path) if place.head.kind == KIND_FRAMES]


@pytest.mark.parametrize("index", [True, False])
def test_heads_that_are_mended_tell_of_beginning_end_and_markers(tmp_path: Path, index: bool) -> None:
    path = tmp_path / "a.gputop"
    frames, blocks = marked(path)
    if not index:
        os.truncate(path, [place for place in places(path) if place.head.kind == KIND_PARITY][-1].end)
    last_key = [place for place in blocks if place.head.flags & 1][-1]
    for place in (blocks[0], blocks[33], last_key, blocks[-1]):
        holed(path, place.offset, HEAD.size)
    with Recording(str(path)) as recording:
        assert (recording.start_ns, recording.end_ns) == (frames[0].t_ns, frames[-1].t_ns)
        assert recording.marks == [mark for frame in frames for mark in frame.marks]
        assert recording.board_at(frames[0].t_ns).seq == 0
        assert list(recording.frames(recording.start_ns, recording.end_ns + 1)) == frames


def test_a_bad_sector_is_mended_like_any_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gputop"
    frames, blocks = marked(path)
    sector = blocks[40].offset // HOLE * HOLE
    read = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        if offset < sector + HOLE and offset + size > sector:
            raise OSError(EIO, os.strerror(EIO))
        return read(fd, size, offset)

    with Recording(str(path)) as recording:
        monkeypatch.setattr("gputop.recording.scan.os.pread", pread)
        assert list(recording.frames()) == frames


def test_what_nothing_can_mend_is_not_searched_for_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that was kept has no parity: a search to its end for each damaged block would take a time that grows with its square."""
    path, reads, pread = tmp_path / "kept.gputop", [0], os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        reads[-1] += 1
        return pread(fd, size, offset)

    monkeypatch.setattr("gputop.recording.scan.os.pread", counted)
    blocks = [pack_frames([frame]) for frame in Session(1, 1, threads=1, probes=False).frames(2000)]
    for every in (4000, 3):
        broken = [block[:-1] + bytes([block[-1] ^ 1]) if i % every == 1 else block for i, block in enumerate(blocks)]
        path.write_bytes(pack_header(HEADER) + b"".join(broken))
        with Recording(str(path)) as recording:
            assert len(list(recording.frames())) == sum(i % every != 1 for i in range(2000))
        reads.append(0)
    assert reads[1] < 3 * reads[0]


def test_parities_of_a_file_that_grows_are_found_once_they_are_there(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    frames, blocks = marked(path)
    holed(path, blocks[5].offset, HEAD.size)
    good = path.read_bytes()
    parity = next(place for place in places(path) if place.head.kind == KIND_PARITY)
    path.write_bytes(good[: parity.offset + 100])
    with Recording(str(path)) as recording:
        assert list(recording.frames()) == frames[:50]
        assert "damaged" in recording.problem
        path.write_bytes(good)
        recording.refresh()
        assert list(recording.frames()) == frames
        assert recording.problem == ""


def test_scan_is_of_whole_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    _, blocks = marked(path)
    with path.open("rb") as file:
        assert scan(file.fileno(), blocks[3].offset + 1, blocks[5].end - 1) == [blocks[4]]
