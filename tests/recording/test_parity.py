"""The code that mends recordings: arithmetic of bytes, and what it brings back of any bytes, wherever they are damaged."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputop.recording.format import HEAD, KIND_FRAMES, KIND_PARITY, FormatError, pack
from gputop.recording.galois import inverse, product, solve
from gputop.recording.mend import Mender
from gputop.recording.parity import MOST_SEGMENTS, ROWS, SEGMENT_BYTES, Parity, block_in

NUMBERS = st.integers(0, 255)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_numbers_make_a_field(a: int, b: int, c: int) -> None:
    assert product(a, b) == product(b, a)
    assert product(a, product(b, c)) == product(product(a, b), c)
    assert product(a, b ^ c) == product(a, b) ^ product(a, c)
    assert product(a, 1) == a
    assert not a or product(a, inverse(a)) == 1


def test_equations_whose_first_number_is_zero_are_solved() -> None:
    one, other = 0x0102, 0x0304
    assert solve([[0, 1], [1, 1]], [other, one ^ other], 2) == [one, other]


def group_of(*sizes: int) -> tuple[bytes, bytes]:
    """Blocks of frames with payloads of these sizes, and their parity."""
    rng, parity, blocks = random.Random(5), Parity(), b""
    for size in sizes:
        block = pack(KIND_FRAMES, rng.randbytes(size))
        assert parity.has_room_for(block)
        parity.add(block)
        blocks += block
    size, packed = parity.packed_bytes, parity.pack(0)
    assert len(packed) == size
    return blocks, packed


def repaired(fd: int, offset: int, end: int) -> tuple[int, bytes]:
    """Where the group begins that holds an offset, and its bytes."""
    mender = Mender(fd)
    mender.block(offset, end)
    [(group, data)] = mender._known
    assert data is not None
    return group.start, data


def write(path: Path, data: bytes) -> int:
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 9000), min_size=1, max_size=20), st.data())
def test_as_many_segments_as_there_are_rows_come_back(tmp_path: Path, sizes: list[int], data: st.DataObject) -> None:
    blocks, parity = group_of(*sizes)
    segments = -(-len(blocks) // SEGMENT_BYTES)
    hit = data.draw(st.sets(st.integers(0, segments - 1), min_size=1, max_size=ROWS))
    broken = bytearray(blocks)
    for i in hit:
        broken[i * SEGMENT_BYTES + data.draw(st.integers(0, min(SEGMENT_BYTES, len(blocks) - i * SEGMENT_BYTES) - 1))] ^= 16
    fd = write(tmp_path / "g", b"before" + bytes(broken) + parity)
    start, found = repaired(fd, 6, 6 + len(blocks + parity))
    os.close(fd)
    assert (start, found) == (6, blocks)
    assert block_in(found, start, 6)[1] == blocks[HEAD.size : HEAD.size + sizes[0]]


def test_rows_that_are_damaged_themselves_count_as_lost_with_the_segments(tmp_path: Path) -> None:
    blocks, parity = group_of(*[3000] * 40)
    first = parity.index(parity[:4], 1)  # where its second block begins
    row = first - 200
    cases: list[tuple[tuple[int, ...], int, bool]] = [
        ((row,), 5, True), ((row,), 6, False), ((0,), 6, True), ((first,), 6, True), ((row, len(parity) - 1), 4, True),
        ((0, first), 1, False),
    ]  # fmt: skip
    for damaged, lost, mended in cases:
        broken, code = bytearray(blocks), bytearray(parity)
        for at in damaged:
            code[at] ^= 1
        for i in range(lost):
            broken[i * 7 * SEGMENT_BYTES] ^= 1
        fd = write(tmp_path / "g", bytes(broken + code))
        if mended:
            assert repaired(fd, 0, len(broken + code)) == (0, blocks), damaged
        else:
            with pytest.raises(FormatError):
                repaired(fd, 0, len(broken + code))
        os.close(fd)


def test_what_belongs_to_no_group_is_not_mended(tmp_path: Path) -> None:
    blocks, parity = group_of(500, 700)
    fd = write(tmp_path / "g", b"x" * 50 + blocks + parity)
    for offset in (20, 50 + len(blocks)):
        with pytest.raises(FormatError):
            repaired(fd, offset, 50 + len(blocks + parity))
    with pytest.raises(FormatError):
        block_in(blocks, 0, 3)
    os.close(fd)


def test_a_block_of_many_mib_makes_larger_segments(tmp_path: Path) -> None:
    blocks, parity = group_of(2 << 20, 300)
    broken = bytearray(blocks)
    broken[1_000_000:1_020_000] = bytes(20_000)
    fd = write(tmp_path / "g", bytes(broken) + parity)
    assert repaired(fd, 0, len(blocks + parity))[1] == blocks
    os.close(fd)


def test_a_group_is_full_at_last() -> None:
    parity, block = Parity(), pack(KIND_FRAMES, bytes(10_000))
    count = 0
    while parity.has_room_for(block):
        parity.add(block)
        count += 1
    assert count == MOST_SEGMENTS * SEGMENT_BYTES // len(block)


def test_a_table_that_claims_a_gigabyte_is_no_table(tmp_path: Path) -> None:
    blocks, _ = group_of(900)
    forged = struct.pack("<IIBBBB", len(blocks), 1 << 30, 1, ROWS, 0, 4) + bytes(2 * (1 + ROWS))
    lie = pack(KIND_PARITY, forged + zlib.crc32(forged).to_bytes(4, "little") + bytes(4096))
    fd = write(tmp_path / "g", blocks[:40] + b"?" + blocks[41:] + lie)
    tracemalloc.start()
    assert Mender(fd).place(0, len(blocks + lie)) is None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    os.close(fd)
