"""Whatever happens to a recording: at most the rest of a chunk is lost, the rest is read, the loss is said, nothing else is raised."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputop.model.frame import Frame
from gputop.recording.chunks import Decoder
from gputop.recording.format import (
    FLAG_KEY,
    FLAG_PLAIN,
    HEAD,
    KIND_FRAMES,
    KIND_HEADER,
    KIND_INDEX,
    TICKS,
    FormatError,
    pack,
    pack_end,
    pack_frames,
    pack_header,
)
from gputop.recording.reader import Recording
from gputop.recording.scan import BlockPlace, Index, pack_index, places
from gputop.recording.writer import Writer
from gputop.system.errors import UserError
from tests.recording.made import HEADER, SECOND, START_NS, Session, record
from tests.recording.test_columns import coarse
from tests.wait import PATIENCE_S

TICKS_A_SECOND, TICKS_A_CHUNK = 10, 30
FLIPS = (80, pytest.param(int(os.environ.get("GPUTOP_FLIPS", "300")), marks=pytest.mark.soak))
"""All 10,000 take a minute or two: GPUTOP_FLIPS=10000."""


def small(path: Path, ticks: int = 330) -> list[Frame]:
    frames = [coarse(frame) for frame in Session(1, 2, threads=2, probes=False).frames(ticks, key_every=30)]
    record(path, frames)
    return frames


def read_all(path: Path) -> tuple[list[Frame], str]:
    with Recording(str(path)) as recording:
        frames = list(recording.frames())
        recording.board_at(recording.end_ns)
        assert recording.header == HEADER
        return frames, recording.problem


@pytest.mark.parametrize("flips", FLIPS)
def test_a_bit_flipped_anywhere_costs_the_rest_of_a_chunk_at_most_and_is_said(tmp_path: Path, flips: int) -> None:
    path, rng = tmp_path / "a.gputop", random.Random(flips)
    frames = small(path, 65)
    whole = {frame.seq: frame for frame in frames}
    good = path.read_bytes()
    unsaid = 0
    with open(path, "r+b", buffering=0) as file:
        for bit in rng.sample(range(8 * len(good)), flips):
            place = bit // 8
            os.pwrite(file.fileno(), bytes([good[place] ^ 1 << bit % 8]), place)
            found, problem = read_all(path)
            os.pwrite(file.fileno(), good[place : place + 1], place)
            assert all(whole[frame.seq] == frame for frame in found), place
            lost = len(frames) - len(found)
            assert lost <= TICKS_A_CHUNK, (place, lost)
            unsaid += bool(lost and not problem)
    assert not unsaid
    assert read_all(path) == (frames, "")


def test_a_stream_that_was_kept_ends_anywhere(tmp_path: Path) -> None:
    path, frames = tmp_path / "kept.gputop", list(Session(procs=3).frames(30))
    stream = pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames)
    path.write_bytes(stream + pack_end(frames[-1].t_ns))
    with Recording(str(path)) as recording:
        assert len(list(recording.frames())) == 30
        assert recording.problem == ""


def test_cut_anywhere_it_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    frames = small(path, 60)
    good = path.read_bytes()
    fd = os.open(path, os.O_RDWR)
    blocks = list(places(fd, 8, len(good)))
    edges = [edge + d for place in blocks for edge in (place.offset, place.offset + HEAD.size, place.end) for d in (-1, 0, 1)]
    opening = blocks[0].end
    rng = random.Random(3)
    for length in sorted({*edges, *rng.sample(range(len(good)), 80)} & set(range(opening, len(good) + 1)), reverse=True):
        os.ftruncate(fd, length)
        found, problem = read_all(path)
        whole = sum(1 for place in blocks if place.end <= length and place.head.kind == KIND_FRAMES)
        assert found == frames[: whole * TICKS_A_SECOND]
        assert ("cut short" in problem) == (length < len(good)), length
    os.close(fd)


def test_a_damaged_piece_costs_the_rest_of_its_chunk_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    frames = small(path, 90)
    good = path.read_bytes()
    pieces = [place for place in places_of(path) if place.head.kind == KIND_FRAMES and place.head.tier == TICKS]
    for i, place in enumerate(pieces):
        path.write_bytes(good[: place.offset + HEAD.size + 9] + bytes(3) + good[place.offset + HEAD.size + 12 :])
        begins, ends = i * TICKS_A_SECOND, (i // 3 + 1) * TICKS_A_CHUNK
        found, problem = read_all(path)
        assert found == frames[:begins] + frames[ends:]
        assert f"missing frames: {ends - begins}, " in problem or not 0 < begins < ends < len(frames)
        assert f"{sum(one.end - one.offset for one in pieces[i : ends // TICKS_A_SECOND])} bytes are damaged" in problem


def test_a_lost_disk_block_costs_the_chunks_that_it_hits(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    frames = [coarse(frame) for frame in Session(1, 12, threads=2, probes=False).frames(150, key_every=30)]
    record(path, frames)
    good = path.read_bytes()
    for at in range(0, len(good), 4096):
        path.write_bytes(good[:at] + bytes(4096) + good[at + 4096 :])
        found, problem = read_all(path)
        assert len(frames) - len(found) <= 3 * TICKS_A_CHUNK, at
        assert problem or len(found) == len(frames)


def places_of(path: Path) -> list[BlockPlace]:
    with open(path, "rb") as file:
        return list(places(file.fileno(), 8, path.stat().st_size))


def absurd(value: Any) -> Any:
    """The same with every number 2^60."""
    if isinstance(value, list):
        return [absurd(one) for one in value]
    if isinstance(value, dict):
        return {name: absurd(one) for name, one in value.items()}
    return value if isinstance(value, bool) or not isinstance(value, int) else 1 << 60


@pytest.mark.parametrize("kind", [KIND_HEADER, KIND_INDEX])
def test_absurd_numbers_with_right_checks_cost_nothing(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "a.gputop"
    frames = small(path, 60)
    good = path.read_bytes()
    for place in (place for place in places_of(path) if place.head.kind == kind):
        payload = msgspec.msgpack.decode(good[place.offset + HEAD.size : place.end])
        block = pack(kind, msgspec.msgpack.encode(absurd(payload)), t_ns=place.head.t_ns)
        path.write_bytes(good[: place.offset] + block + good[place.end :])
        found, problem = read_all(path)
        assert (found, problem) == (frames, ""), place


LIES: list[dict[str, Any]] = [
    {"chunks": []}, {"chunks": [(1, 500)]}, {"chunks": [(1 << 60, 500)]}, {"previous": 300}, {"end_ns": 1 << 60},
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_an_index_that_lies_is_left_aside(tmp_path: Path, lie: dict[str, Any]) -> None:
    path = tmp_path / "a.gputop"
    frames = small(path, 60)
    good, place = path.read_bytes(), places_of(path)[-1]
    index = msgspec.msgpack.decode(good[place.offset + HEAD.size :], type=Index)
    lying = pack(KIND_INDEX, msgspec.msgpack.encode(msgspec.structs.replace(index, **lie)), t_ns=index.end_ns)
    path.write_bytes(good[: place.offset] + lying)
    assert read_all(path) == (frames, "")


def test_cut_within_the_header_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    path.write_bytes(pack_header(HEADER)[:-1])
    with pytest.raises(FormatError, match="cut short"):
        Recording(str(path))


@pytest.mark.parametrize("index", [False, True])
def test_parts_that_lie_are_left_out_within_bounds(tmp_path: Path, index: bool) -> None:
    """Counts of 2^60, bombs, indices that point anywhere: sound checks, senseless content."""
    import struct

    import zstandard

    def piece(data: bytes, above: int = 0, size: int | None = None) -> bytes:
        return struct.pack("<II", above, len(data) if size is None else size) + zstandard.ZstdCompressor().compress(data)

    rows = msgspec.msgpack.encode({"": [1 << 60], "seq": [0, 1], "t_ns": [0, 1]})
    many = msgspec.msgpack.encode({"": [399_999], "seq": [0, 1], "t_ns": [0, 1], "procs": [4, b"\1" * 400_000, {"": [1 << 60]}]})
    late = START_NS + 3600 * SECOND
    payloads = [
        piece(bytes(200 << 20)), piece(bytes(9 << 20)), piece(rows), piece(many), piece(rows, above=7), piece(rows, size=1 << 31),
        piece(b""), b"", b"\1\2", piece(b"\xdd\xff\xff\xff\xff"), piece(b"\xc1"),
    ]  # fmt: skip
    lies = [pack(KIND_FRAMES, payload, flags=FLAG_KEY, t_ns=late) for payload in payloads]
    lies += [pack(KIND_FRAMES, payload, flags=FLAG_PLAIN, t_ns=late) for payload in (b"\xdd\xff\xff\xff\xff", b"\xc1", b"")]
    lies.append(HEAD.pack(b"\x9dGP\n", KIND_FRAMES, 0, 0, 1 << 31, 0, 0, 0))
    if index:
        senseless = [(1, 1 << 60), (0, 3), (1 << 60, 8), (5, 1 << 62)]
        lies.append(pack_index(Index(0, senseless, [], 1 << 60)))
        lies.append(pack_index(Index(1 << 60, [], [], 0)))
    path = tmp_path / "a.gputop"
    frames = small(path, 50)
    path.write_bytes(path.read_bytes() + b"".join(lies))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Recording(str(path)) as recording:
        found = list(recording.frames())
        recording.board_at(1 << 62)
        assert recording.problem
    if not index:
        assert found == frames
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000
    decoder = Decoder()
    decoder.feed(path.read_bytes())
    assert decoder.problem


WRITE = """
import sys, itertools
from gputop.recording.writer import Writer
from tests.recording.made import HEADER, Session
session, writer = Session(1, 3, threads=2), Writer(sys.argv[1], HEADER)
for frame in session.frames(1 << 40):
    writer.add(frame)
    sys.stdout.write(f"{frame.seq}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("moments", [15, pytest.param(50, marks=pytest.mark.soak)])
def test_killed_at_random_moments_it_is_whole_to_the_last_second(tmp_path: Path, moments: int) -> None:
    """One process is stopped and looked at again and again (what kill -9 leaves), and killed at the end."""
    rng, path = random.Random(5), tmp_path / "killed.gputop"
    process = subprocess.Popen([sys.executable, "-c", WRITE, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        written, last = 0, -1
        for moment in range(moments):
            for _ in range(rng.randrange(1, 25)):
                last = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL if moment == moments - 1 else signal.SIGSTOP)
            _await_stop(process.pid)
            copy = tmp_path / "copy.gputop"
            copy.write_bytes(path.read_bytes())
            with Recording(str(copy)) as recording:
                tail = [frame.seq for frame in recording.frames(recording.end_ns - 5 * SECOND)]
            assert tail == list(range(tail[0], tail[-1] + 1)) if tail else not written
            assert last < TICKS_A_SECOND or tail[-1] >= max(written, last - TICKS_A_SECOND)
            written = tail[-1] if tail else 0
            if moment < moments - 1:
                os.kill(process.pid, signal.SIGCONT)
        found, _ = read_all(path)
        assert [frame.seq for frame in found] == list(range(written + 1))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _await_stop(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state in "TZX":
            return
        time.sleep(0.001)
    raise AssertionError("it did not stop")


def test_a_full_disk_ends_it_in_a_line_and_costs_a_second(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        frames = [coarse(frame) for frame in Session(1, 4).frames(1000)]
        writer, added = Writer(str(disk / "full.gputop"), HEADER), 0
        with pytest.raises(UserError, match="No space left"):  # noqa: PT012
            for frame in frames:
                writer.add(frame)
                added += 1
        writer.close()
        found, problem = read_all(disk / "full.gputop")
        assert found == frames[: len(found)]
        assert len(found) >= added - TICKS_A_SECOND
        assert added > 50
        assert not problem or "cut short" in problem  # the index may have found room
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "good.gputop"
    small(path, 60)
    return path.read_bytes()


def test_what_somebody_appended_is_not_taken_for_a_loss(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "padded.gputop"
    path.write_bytes(good + bytes(4096))
    with Recording(str(path)) as recording:
        assert len(list(recording.frames())) > 0
        assert recording.problem == "4096 bytes behind its end belong to no recording"
