"""Runs: blocks that build upon each other, opened anywhere, cut off anywhere, mended where one of them is damaged."""

from __future__ import annotations

import random
import struct
import zlib
from itertools import islice
from pathlib import Path

import msgspec
import pytest
import zstandard

from gputop.model.board import Board
from gputop.model.frame import CudaCall, Frame, Probes, SchedThread
from gputop.recording.columns.layout import ColumnError
from gputop.recording.format import CODEC_RUN, CODEC_ZSTD, FLAG_FOLLOWS, HEAD, KIND_FRAMES, KIND_PARITY, KIND_REFERENCE, Decoder, pack
from gputop.recording.reader import Recording
from gputop.recording.scan import Place, scan
from gputop.recording.writer import Writer
from tests.recording.made import HEADER, MS, SECOND, START_NS, Session, record
from tests.recording.test_columns import coarse, through

Recorded = tuple[bytes, list[Frame]]


def places(path: Path) -> list[Place]:
    with path.open("rb") as file:
        return scan(file.fileno(), 8, path.stat().st_size)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Three runs."""
    path = tmp_path_factory.mktemp("runs") / "a.gputop"
    frames = [coarse(frame) for frame in Session(1, 3, threads=2).frames(1500)]
    record(path, frames)
    return path.read_bytes(), frames


@pytest.fixture
def path(tmp_path: Path, recorded: Recorded) -> Path:
    path = tmp_path / "a.gputop"
    path.write_bytes(recorded[0])
    return path


def damage(path: Path, *places: Place) -> None:
    data = bytearray(path.read_bytes())
    for place in places:
        data[place.offset + random.Random(place.offset).randrange(place.end - place.offset)] ^= 4
    path.write_bytes(data)


def test_a_run_begins_without_building_upon_another(path: Path) -> None:
    kinds = "".join({KIND_FRAMES: "f", KIND_PARITY: "p", KIND_REFERENCE: "r"}.get(place.head.kind, "") for place in places(path))
    frames = [place for place in places(path) if place.head.kind == KIND_FRAMES]
    starts = [place for place in frames if not place.head.flags & FLAG_FOLLOWS]
    assert kinds.count("pp") == len(starts) == 3
    assert kinds.startswith("rf")
    assert "pprrf" in kinds  # its copy, and a second one once all have been told of
    assert kinds.count("r") == 4
    assert all(place.head.flags & 1 for place in starts)


def test_one_damaged_block_in_every_run_costs_nothing(path: Path, recorded: Recorded) -> None:
    runs: list[list[Place]] = []
    for place in places(path):
        if place.head.kind == KIND_FRAMES:
            runs += [] if place.head.flags & FLAG_FOLLOWS else [[]]
            runs[-1].append(place)
    rng = random.Random(2)
    damage(path, *(rng.choice(run) for run in runs))
    with Recording(str(path)) as recording:
        assert list(recording.frames()) == recorded[1]
        assert recording.problem == ""


@pytest.mark.parametrize("hole", [False, True])
def test_two_neighbours_damaged_in_every_run_cost_nothing(path: Path, recorded: Recorded, hole: bool) -> None:
    frames = [place for place in places(path) if place.head.kind == KIND_FRAMES]
    data = bytearray(path.read_bytes())
    for i in (i for i, place in enumerate(frames) if not place.head.flags & FLAG_FOLLOWS):
        first, second = frames[i + 7 : i + 9]
        begin = first.offset if hole else first.end - 5
        data[begin : second.offset + 50] = bytes(second.offset + 50 - begin)
    path.write_bytes(data)
    with Recording(str(path)) as recording:
        assert list(recording.frames()) == recorded[1]
        assert recording.problem == ""


def test_five_flipped_bits_in_every_run_cost_nothing(path: Path, recorded: Recorded) -> None:
    runs: list[list[Place]] = []
    for place in places(path):
        if place.head.kind in (KIND_FRAMES, KIND_PARITY):
            runs += [] if place.head.flags & FLAG_FOLLOWS or place.head.kind == KIND_PARITY else [[]]
            runs[-1].append(place)
    rng = random.Random(7)
    damage(path, *(place for run in runs for place in rng.sample(run, 5)))
    with Recording(str(path)) as recording:
        assert list(recording.frames()) == recorded[1]


def test_a_lost_disk_block_of_4_kib_costs_nothing_wherever_it_lies(path: Path, recorded: Recorded) -> None:
    good, rng = path.read_bytes(), random.Random(4)
    frames = [place for place in places(path) if place.head.kind == KIND_FRAMES]
    parities = [place for place in places(path) if place.head.kind == KIND_PARITY]
    edges = [parities[0].offset - 4000, parities[0].offset - 50, parities[2].offset - 2048]
    for at in (*edges, *(rng.randrange(frames[0].offset, parities[-1].offset - 4096) for _ in range(12))):
        path.write_bytes(good[:at] + bytes(4096) + good[at + 4096 :])
        with Recording(str(path)) as recording:
            assert list(recording.frames()) == recorded[1], at


@pytest.mark.parametrize("hole", [1, HEAD.size, 2500])
def test_a_reference_whose_copies_are_both_damaged_is_mended(path: Path, recorded: Recorded, hole: int) -> None:
    """With the first block behind it, where the hole reaches so far."""
    data = bytearray(path.read_bytes())
    for place in (place for place in places(path) if place.head.kind == KIND_REFERENCE):
        begin = place.end - 700 if hole > HEAD.size else place.offset
        data[begin : begin + hole] = bytes(hole)
    path.write_bytes(data)
    with Recording(str(path)) as recording:
        assert list(recording.frames()) == recorded[1]


def test_more_than_can_be_mended_costs_the_rest_of_its_run_and_is_said(path: Path, recorded: Recorded) -> None:
    frames = [place for place in places(path) if place.head.kind == KIND_FRAMES]
    damage(path, *frames[20:40])
    end = next(place.head.t_ns for place in frames[40:] if not place.head.flags & FLAG_FOLLOWS)
    with Recording(str(path)) as recording:
        found = list(recording.frames())
        assert found == [frame for frame in recorded[1] if frame.t_ns < frames[20].head.t_ns or frame.t_ns >= end]
        assert "damaged" in recording.problem


@pytest.mark.parametrize("piece", [b"", b"x" * 5000])
def test_a_piece_that_is_missing_or_too_many_costs_its_run(path: Path, recorded: Recorded, piece: bytes) -> None:
    data, frames = path.read_bytes(), [place for place in places(path) if place.head.kind == KIND_FRAMES]
    path.write_bytes(data[: frames[20].offset + 9] + piece + data[frames[23].offset + 9 :])
    end = next(place.head.t_ns for place in frames[24:] if not place.head.flags & FLAG_FOLLOWS)
    with Recording(str(path)) as recording:
        assert list(recording.frames()) == [frame for frame in recorded[1] if frame.t_ns < frames[20].head.t_ns or frame.t_ns >= end]


def test_any_moment_is_reached_in_any_order(path: Path, recorded: Recorded) -> None:
    frames, rng = recorded[1], random.Random(8)
    wanted = sorted(rng.sample(range(len(frames)), 12))
    board, expected = Board(header=HEADER), {}
    for i, frame in enumerate(frames):
        board.fold(frame)
        if i in wanted:
            expected[i] = board.snapshot()
    rng.shuffle(wanted)
    with Recording(str(path)) as recording:
        for i in wanted:
            found = recording.board_at(frames[i].t_ns)
            assert (found.procs, found.threads, found.calls) == (expected[i].procs, expected[i].threads, expected[i].calls)
            assert list(islice(recording.frames(frames[i].t_ns), 10)) == frames[i : i + 10]


def test_a_run_that_grows_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    frames = [coarse(frame) for frame in Session(1, 3, threads=2).frames(200)]
    writer, seen = Writer(str(path), HEADER), 0
    for i, frame in enumerate(frames):
        writer.add(frame)
        if i == 50:
            recording = Recording(str(path))
        if i > 50 and i % 13 == 0:
            recording.refresh()
            found = list(recording.frames(frames[seen].t_ns))
            assert found == frames[seen : seen + len(found)]
            seen += max(0, len(found) - 3)
    writer.close()
    recording.close()
    assert seen > 150


def test_without_key_frames_runs_end_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    frames = [coarse(frame) for frame in Session(1, 2, threads=1, probes=False).frames(1300, key_every=10_000)]
    record(path, frames)
    assert sum(place.head.kind == KIND_PARITY for place in places(path)) == 2 * 2
    with Recording(str(path)) as recording:
        assert list(recording.frames()) == frames


def test_numbers_that_no_column_holds_end_a_run(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    frames = [coarse(frame) for frame in Session(1, 2, threads=1, probes=False).frames(90)]
    frames[45].probes = Probes(frames[45].t_ns, [thread(7, 5, {40: (1 << 63) + 1}, 90), thread(8, 5, {40: 1}, 90)])
    record(path, frames)
    starts = [place.head.codec for place in places(path) if place.head.kind == KIND_FRAMES and not place.head.flags & FLAG_FOLLOWS]
    assert starts == [CODEC_RUN, CODEC_ZSTD, CODEC_RUN]
    with Recording(str(path)) as recording:
        assert list(recording.frames()) == frames


def probed(t_ns: int, *threads: SchedThread, calls: tuple[CudaCall, ...] = ()) -> list[Frame]:
    return [Frame(0, t_ns, probes=Probes(t_ns, list(threads), calls=list(calls)))]


def thread(tid: int, ms: int, hist: dict[int, int], slept: int) -> SchedThread:
    return SchedThread(tid, 7, ms * MS, 2 * MS, MS, slept * MS, 0, ms, 1, 0, hist, start_ns=START_NS)


def test_distributions_grow_shrink_and_begin_anew_from_block_to_block() -> None:
    blocks = [
        probed(START_NS, thread(7, 5, {40: 3, 51: 1}, 90), thread(8, 5, {}, 90)),
        probed(START_NS + SECOND, thread(9, 6, {60: 2**40}, 1090)),
        probed(START_NS + 2 * SECOND, thread(7, 7, {40: 3, 51: 2, 70: 9}, 2090), thread(8, 7, {41: 1}, 2090)),
        probed(START_NS + 3 * SECOND, thread(7, 8, {70: 4}, 3090), thread(9, 8, {60: 2**40 + 1}, 3090), thread(8, 9, {41: 1}, 3090)),
    ]
    calls = [CudaCall(7, "cuCtxSynchronize", n, n * MS, 0, {50: n}, sums={50: n * MS}) for n in range(1, 5)]
    for block, call in zip(blocks, calls, strict=True):
        block[0].probes = msgspec.structs.replace(block[0].probes, calls=[call])  # type: ignore[type-var]
    for i in range(1, 5):
        found = through(*blocks[:i])[0].probes
        told = blocks[i - 1][0].probes
        assert found is not None
        assert told is not None
        assert {one.tid: one for one in found.threads} == {one.tid: one for one in told.threads}
        assert found.calls == told.calls


def test_distributions_and_runs_that_swell_are_refused() -> None:
    swollen = probed(START_NS, *(thread(7, 5, dict.fromkeys(range(i), 1), 90) for i in range(990, 1010)))
    with pytest.raises(ColumnError, match="too many"):
        through(swollen)
    crowds = [probed(START_NS + i, *(thread(tid, 5, {}, 90 + tid % 7) for tid in range(i * 30_000, i * 30_000 + 30_000))) for i in range(9)]
    with pytest.raises(ColumnError, match="too many"):
        through(*crowds)


def told(length: int, segment: int, segments: int, rows: int, first: int, count: int) -> bytes:
    """A table of a parity, with a sound check."""
    table = struct.pack("<IIBBBB", length, segment, segments, rows, first, count) + bytes(2 * (segments + rows))
    return table + zlib.crc32(table).to_bytes(4, "little") + bytes(count * 16)


def test_made_up_runs_and_parities_are_left_out_within_bounds(path: Path, recorded: Recorded) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(200 << 20))
    payloads = [b"", b"\0" * 4, bytes(4) + b"\xff\xff\xff\x7f" + bomb, bytes(4) + (1 << 24).to_bytes(4, "little") + bomb,
                bytes(8) + bomb, bytes(4) + b"\x09\0\0\0", b"\1\2\3\4" + b"\x09\0\0\0" + bomb]  # fmt: skip
    late = START_NS + 3600 * SECOND
    lies = [pack(KIND_FRAMES, payload, CODEC_RUN, flags, late) for payload in payloads for flags in (0, FLAG_FOLLOWS)]
    tables = [(0, 0, 0, 0, 0, 0), (1 << 31, 1 << 31, 1, 6, 0, 4), (5000, 1, 239, 6, 0, 3), (900, 1024, 1, 255, 9, 99), (9, 0, 1, 6, 1, 2)]
    lies += [pack(KIND_PARITY, told(*table), t_ns=late) for table in tables] + [pack(KIND_PARITY, b"\xc1", t_ns=late)]
    frames = [place for place in places(path) if place.head.kind == KIND_FRAMES]
    damage(path, *frames[-25:])
    path.write_bytes(path.read_bytes() + b"".join(lies))
    with Recording(str(path)) as recording:
        found = list(recording.frames())
        recording.board_at(1 << 62)
        assert found == [frame for frame in recorded[1] if frame.t_ns < frames[-25].head.t_ns]
        assert recording.problem
    decoder = Decoder()
    decoder.feed(path.read_bytes())
    assert decoder.problem
