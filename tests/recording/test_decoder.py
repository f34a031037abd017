"""The stream as a pipe gives it: in pieces of any size, damaged anywhere."""

from __future__ import annotations

import random

import msgspec
import pytest

from gputop.model.frame import Frame, Header, ProcSample
from gputop.recording.chunks import Decoder
from gputop.recording.format import FLAG_KEY, FLAG_PLAIN, HEAD, KIND_FRAMES, MAGIC, FormatError, pack, pack_frames, pack_header

HEADER = Header(host="node7", t_ns=5, unix_ns=1_700_000_000_000_000_000)
FRAMES = [Frame(i, 5 + i * 100, key=i == 0, procs=[ProcSample(i + 1, 7, 5, "R", i, 0, 4096, 1)]) for i in range(20)]
BLOCKS = [pack_frames([frame]) for frame in FRAMES]
STREAM = pack_header(HEADER) + b"".join(BLOCKS)


def decode(data: bytes, step: int = 1 << 30) -> tuple[Decoder, list[Header | Frame]]:
    decoder = Decoder()
    out = [item for i in range(0, len(data), step) for item in decoder.feed(data[i : i + step])]
    decoder.finish()
    return decoder, out


@pytest.mark.parametrize("step", [1, 7, 100, 1 << 20])
def test_pieces_of_any_size_give_the_same_frames(step: int) -> None:
    decoder, out = decode(STREAM, step)
    assert out == [HEADER, *FRAMES]
    assert decoder.header == HEADER
    assert decoder.problem == ""


def test_a_greeting_before_the_stream_is_passed_over() -> None:
    decoder, out = decode(b"Welcome to node7!\nLast login: today\n" + STREAM)
    assert out == [HEADER, *FRAMES]
    assert decoder.problem == ""


def test_a_bit_flip_anywhere_costs_one_block_and_is_said() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        data = bytearray(STREAM)
        place = rng.randrange(len(MAGIC), len(data))
        data[place] ^= 1 << rng.randrange(8)
        decoder, out = decode(bytes(data))
        assert len(out) == len(FRAMES), place
        assert decoder.problem


def test_a_flip_in_the_magic_costs_nothing() -> None:
    _, out = decode(b"GPUTOP9\n" + STREAM[len(MAGIC) :])
    assert out == [HEADER, *FRAMES]


def test_a_cut_stream_gives_what_is_whole() -> None:
    decoder, out = decode(STREAM[:-3])
    assert out == [HEADER, *FRAMES[:-1]]
    assert str(len(BLOCKS[-1]) - 3) in decoder.problem


def test_unknown_kinds_are_skipped() -> None:
    decoder, out = decode(STREAM + pack(77, b"from the future") + BLOCKS[0])
    assert out == [HEADER, *FRAMES, FRAMES[0]]
    assert decoder.problem == ""


def test_an_older_major_version_is_refused() -> None:
    with pytest.raises(FormatError, match=r"made by an older gputop .format 1, this one reads format 2.: open it with that gputop"):
        decode(pack_header(Header(major=1)))


def test_a_newer_major_version_is_refused() -> None:
    with pytest.raises(FormatError, match="newer gputop"):
        decode(pack_header(Header(major=3)))
    with pytest.raises(FormatError, match="newer gputop"):
        decode(b"Welcome to node7\n" + b"GPUTOP3\nanother layout" * 9)


@pytest.mark.parametrize("data", [b"", b"short", b"bash: gputop: command not found\n" * 3, bytes(100_000)])
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode(data)


def test_the_refusal_shows_what_came_instead() -> None:
    with pytest.raises(FormatError, match="command not found"):
        decode(b"bash: line 1: gputop: command not found\n", 5)


def test_a_head_that_claims_too_much_is_no_head() -> None:
    head = HEAD.pack(b"\x9dGP\n", 2, 0, 0, 0xFFFFFFFF, 0, 0, 0)
    decoder, out = decode(STREAM + head + BLOCKS[1])
    assert out == [HEADER, *FRAMES, FRAMES[1]]
    assert str(len(head)) in decoder.problem


def test_broken_processes_of_a_frame_cost_that_frame() -> None:
    decoder = Decoder()
    decoder.feed(pack_header(HEADER))
    for lie in ({"infos": [5]}, {"infos": 5}, {"procs": [[1]]}, {"procs": [[1, "x"]]}):
        payload = msgspec.msgpack.encode([{"seq": 1, "t_ns": 5, "key": True, **lie}])
        assert decoder.feed(pack(KIND_FRAMES, payload, flags=FLAG_KEY | FLAG_PLAIN)) == []
    assert decoder.lost_bytes
    assert decoder.feed(pack_frames([FRAMES[0]])) == [FRAMES[0]]
