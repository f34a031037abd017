"""The table of gaps: what lies between two ticks of which nothing is known, and what damage leaves open."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputop.model.frame import Frame
from gputop.recording.format import FLAG_KEY, HEAD, KIND_FRAMES, TICKS, pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.recording.scan import BlockPlace, places
from gputop.recording.writer import Writer
from gputop.tables.database import Database
from tests.recording.made import HEADER, MS, SECOND, START_NS, Session
from tests.recording.test_columns import coarse

Row = tuple[float, float, int | None, str]


def gaps(path: Path, start_s: float = 0, end_s: float = 3600) -> list[Row]:
    """(seconds since the recording began, seconds, missed beats, reason)"""
    with Recording(str(path)) as recording:
        database = Database(recording, recording.start_ns + int(start_s * SECOND), recording.start_ns + int(end_s * SECOND))
        _, rows = database.ask("SELECT round(t_s, 3), round(dt_s, 3), missed, reason FROM gap")
        return list(rows)  # type: ignore[arg-type]


def beats(path: Path, *told: tuple[int, int]) -> Path:
    """Frames at (ms, beats skipped)."""
    frames = [Frame(seq, START_NS + ms * MS, missed=missed, key=not seq) for seq, (ms, missed) in enumerate(told)]
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    return path


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(0, 0), (100, 0), (200, 0)], []),
        ([(0, 0), (100, 0), (500, 3), (600, 0)], [(0.1, 0.4, 3)]),  # a reading that took 0.35 s
        ([(0, 0), (100, 0), (2110, 0), (2200, 19), (2300, 0)], [(0.1, 2.01, 19)]),  # stopped while it waited for the beat
        ([(0, 0), (100, 0), (2110, 0), (2200, 19), (2600, 3)], [(0.1, 2.01, 19), (2.2, 0.4, 3)]),
    ],
)
def test_beats_that_were_skipped(tmp_path: Path, told: list[tuple[int, int]], expected: list[tuple[float, float, int]]) -> None:
    assert gaps(beats(tmp_path / "a.gputop", *told)) == [(*gap, "the beat was skipped") for gap in expected]


@pytest.fixture
def chunks(tmp_path: Path) -> tuple[Path, list[BlockPlace]]:
    """20 s in two chunks, and the blocks of frames."""
    path = tmp_path / "a.gputop"
    writer = Writer(str(path), HEADER)
    for frame in Session(1, 2, threads=1, probes=False).frames(200, key_every=100):
        writer.add(coarse(frame))
    writer.close()
    with path.open("rb") as file:
        found = list(places(file.fileno(), 8, path.stat().st_size))
    return path, [place for place in found if (place.head.kind, place.head.tier) == (KIND_FRAMES, TICKS)]


def lose(path: Path, *lost: BlockPlace) -> None:
    data = bytearray(path.read_bytes())
    for place in lost:
        data[place.offset + HEAD.size] ^= 1
    path.write_bytes(data)


def test_what_is_damaged_is_a_gap_up_to_what_can_be_read_again_or_the_end(chunks: tuple[Path, list[BlockPlace]]) -> None:
    path, blocks = chunks
    second = next(i for i, place in enumerate(blocks) if i and place.head.flags & FLAG_KEY)
    lose(path, blocks[0], blocks[2], blocks[second + 5], blocks[second + 7])
    begin, lost, end = ((blocks[i].head.t_ns - blocks[0].head.t_ns) / SECOND for i in (second, second + 5, -1))
    first, last = gaps(path)
    assert first == (0.0, pytest.approx(begin, abs=0.002), 0, "not in the file")
    assert last[:2] == (pytest.approx(lost - 0.1, abs=0.002), pytest.approx(end - lost + 1, abs=0.2))
    assert last[2:] == (None, "not in the file")
    assert gaps(path, begin + 1, lost - 0.5) == []
    since, lasts = pytest.approx(lost - 0.1, abs=0.002), pytest.approx(2.1, abs=0.002)
    assert gaps(path, lost + 1, lost + 2) == [(since, lasts, None, "not in the file")]
