"""Streams that an enemy made, or that broke on the way, through all that users call.

An input is made from a number alone: a valid stream is taken apart into blocks (`split`, `plain`), changed at some level, put together
again with its checks recomputed (`joined`, `packed`), and read through one of `DRIVERS`. What depends on the format stands in `plain`,
`packed` and `SEEDS`. `python -m tests.recording.fuzz NUMBER…` makes and reads single inputs, for whoever looks for what one of them did.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zstandard
from msgspec.msgpack import Ext

from gputop import cli
from gputop.commands.once import page
from gputop.model.frame import Frame, Header
from gputop.recording.chunks import Decoder, pack_alone
from gputop.recording.format import (
    FLAG_KEY,
    FLAG_PLAIN,
    HEAD,
    KIND_FINDINGS,
    KIND_FRAMES,
    KIND_HEADER,
    KIND_SUMMARY,
    MAGIC,
    MAX_BLOCK_BYTES,
    SYNC,
    TICKS,
    pack_end,
    pack_frames,
    pack_header,
    unpack_head,
)
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.recording.scan import Index, pack_index
from gputop.recording.writer import NO_LIMIT, Rotation
from gputop.stream import kept as findings
from gputop.stream import snapshot
from gputop.stream.session import Session
from gputop.stream.stalled import Unwatched
from gputop.stream.survey import survey
from gputop.system import crash
from gputop.system.errors import UserError
from gputop.tables.schema import TABLES
from gputop.tui.draw.view import View
from tests.recording import made
from tests.tui import scene

MOST_ADDRESSES = 1 << 30  # bytes of address space that a child may have
MOST_GROWTH = 300 << 20  # bytes of memory that reading a small input may take beside what an idle child takes
MOST_S = 10  # seconds of CPU after which an input is ended
S_PER_MB, LEAST_S = 1.0, 2.0  # seconds of CPU that an input may take: by its size, and whatever it is
MOST_WAIT_S = 60  # seconds that it may last on a busy machine
BATCH = 250  # inputs of a child: a fork takes as long as some of them
_ABOVE = struct.Struct("<II")  # check of the piece before, inflated size
_WHOLE = (KIND_FINDINGS, KIND_SUMMARY)  # kinds of blocks that are one zstd frame


class Block(NamedTuple):
    """A block taken apart; ``size`` and ``check`` are None where they are to be right."""

    kind: int
    tier: int
    flags: int
    t_ns: int
    payload: bytes
    size: int | None = None
    check: int | None = None


def split(stream: bytes) -> list[Block]:
    """The blocks of a sound stream."""
    blocks, at = [], len(MAGIC)
    while at < len(stream):
        head = unpack_head(stream, at)
        assert head is not None
        end = at + HEAD.size + head.size
        blocks.append(Block(head.kind, head.tier, head.flags, head.t_ns, stream[at + HEAD.size : end]))
        at = end
    return blocks


def joined(blocks: Sequence[Block]) -> bytes:
    """A stream of these, whatever they say."""
    parts = [MAGIC]
    for block in blocks:
        size = len(block.payload) if block.size is None else block.size
        check = zlib.crc32(block.payload) if block.check is None else block.check
        fields = block.kind & 0xFF, block.tier & 0xFF, block.flags & 0xFFFF, size & 0xFFFFFFFF, block.t_ns & (1 << 64) - 1, check
        head = HEAD.pack(SYNC, *fields, 0)[:-4]
        parts += head, zlib.crc32(head).to_bytes(4, "little"), block.payload
    return b"".join(parts)


def plain(block: Block) -> bytes | None:
    """The msgpack that a block holds, None where it holds none or builds upon another block."""
    if block.kind in _WHOLE:
        with suppress(zstandard.ZstdError):
            return zstandard.ZstdDecompressor().decompressobj().decompress(block.payload)
    if block.kind != KIND_FRAMES or block.flags & FLAG_PLAIN:
        return block.payload
    above, size = _ABOVE.unpack_from(block.payload) if len(block.payload) > _ABOVE.size else (1, 0)
    with suppress(zstandard.ZstdError):
        return None if above else zstandard.ZstdDecompressor().decompressobj().decompress(block.payload[_ABOVE.size :])[:size]
    return None


def packed(block: Block, data: bytes) -> Block:
    """The block with another msgpack in it."""
    if block.kind in _WHOLE:
        return block._replace(payload=zstandard.ZstdCompressor(level=1).compress(data))
    if block.kind != KIND_FRAMES or block.flags & FLAG_PLAIN:
        return block._replace(payload=data)
    return block._replace(payload=_ABOVE.pack(0, len(data)) + zstandard.ZstdCompressor(level=1).compress(data))


def frames_of_a_session(count: int = 8, interval_ns: int = 200 * made.MS) -> list[Frame]:
    return list(made.Session(1, 3, threads=2).frames(count, interval_ns, key_every=5))


def _recorded(frames: list[Frame]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made.record(Path(folder, "a.gputop"), frames)
        return Path(folder, "a.gputop").read_bytes()


def _kept() -> bytes:
    frames = frames_of_a_session(5)
    return pack_header(made.HEADER) + b"".join(pack_frames([frame]) for frame in frames) + pack_end(frames[-1].t_ns)


def _saved() -> bytes:
    frames, out = frames_of_a_session(), pack_header(made.HEADER)
    at, chunks = len(out), [(frames[0].t_ns, len(out)), (frames[5].t_ns, 0)]
    first, second = (pack_alone(msgspec.msgpack.encode(part), FLAG_KEY, part[0].t_ns) for part in (frames[:5], frames[5:]))
    chunks[1] = frames[5].t_ns, at + len(first)
    return out + first + second + pack_index(Index(0, chunks, [], frames[-1].t_ns))


def _found() -> bytes:
    """Longer than what is judged anew (`gputop.stream.kept.SHORT_NS`), with the diagnosis' findings at its end."""
    header, *each = scene.frames(340, gpus=1)
    assert isinstance(header, Header)
    diagnosis = Unwatched(None)
    diagnosis.following.restate(header)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.gputop")
        files = Rotation(str(path), header, NO_LIMIT, 0, lambda: findings.FindingsRecorder(diagnosis.following.engine).tell)
        for seq, frame in enumerate(each[::9]):  # few, for what is found broken is judged anew
            assert isinstance(frame, Frame)
            frame.seq = seq
            diagnosis.take(frame)
            files.add(frame)
        files.close()
        return path.read_bytes()


SEEDS: tuple[Callable[[], bytes], ...] = (
    lambda: _recorded(frames_of_a_session()), _kept, _saved, lambda: _recorded(frames_of_a_session(8, 50 * made.SECOND)), _found,
)  # fmt: skip


@cache
def seeds() -> list[bytes]:
    """Valid streams."""
    return [make() for make in SEEDS]


# -- changes

_INTS = (0, 1, -1, 255, 1 << 16, 1 << 20, 1 << 31, 1 << 32, 1 << 53, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63), -(1 << 31))
_FLOATS = (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 5e-324, -0.0)
_TEXTS = ("", "x", "\x1b[2J", "é" * 300, "0-99999999", "1,2,3,", "x" * 70_000, "-1", "9" * 400, "../" * 50, "%s%n", "\0")
_BYTES = (b"", b"\0", b"\1", b"\2ab", b"\4" * 5, b"\x08" + b"\xff" * 8, b"\x08" + b"\x7f" * 80, bytes(9000))
_RAW = (
    b"\x91" * 500 + b"\xc0", b"\x91" * 1500 + b"\xc0",
    b"\x91" * 200_000 + b"\xc0", b"\x81\xa1a" * 3000 + b"\xc0", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xdd\0\1\0\0" + b"\x90" * 65_536, b"\xdd\0\1\0\0" + b"\x80" * 65_536, b"\xc1", b"",
    b"\xdd\0\4\0\0" + b"\0" * (1 << 18), b"\xd4\xff\0", b"\xd6\xff\xff\xff\xff\xff",
)  # fmt: skip
"""Msgpack that no encoder writes: nests, arrays that are not there or of nothing, extensions."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values within a value stand."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from places(inner, (*path, i))


def _other(rng: random.Random, value: Any, nodes: list[Any]) -> Any:
    """What may stand in the place of a value: mostly of its type."""
    choice = rng.random()
    if isinstance(value, Ext) and choice < 0.8:
        held = bytes(value.data) or b"\xc0"
        changed = rng.choice((changed_value, changed_value, changed_bytes))(rng, held)
        nested = msgspec.msgpack.encode(["{}", [value]])
        return Ext(rng.choice((value.code, value.code, value.code, 0, 5, -1)), rng.choice((changed, changed, nested)))
    if choice < 0.12:
        return msgspec.Raw(rng.choice(_RAW))
    if choice < 0.35:
        pools: list[Sequence[Any]] = [_INTS, _FLOATS, _TEXTS, _BYTES, nodes, (None, True, [], {})]
        return rng.choice(rng.choice(pools))
    if isinstance(value, bool) or value is None:
        return rng.choice((None, True, False, 0, rng.choice(_INTS)))
    if isinstance(value, int):
        return rng.choice((rng.choice(_INTS), value + 1, value - 1, -value, (value << rng.randrange(30)) % (1 << 64), float(value)))
    if isinstance(value, float):
        return rng.choice((*_FLOATS, value * 1e9, 0))
    if isinstance(value, str):
        return rng.choice(_TEXTS)
    if isinstance(value, bytes):
        flipped = bytearray(value or b"\0")
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        return rng.choice((rng.choice(_BYTES), bytes(flipped), value[:-1], value * 2, value[:1] + value))
    if isinstance(value, list):
        return rng.choice(([], value * 2, value[::-1], value[:-1], value * rng.choice((50, 1000)) if len(value) < 60 else value, [value]))
    if isinstance(value, dict):
        kept = dict(rng.sample(sorted(value.items(), key=repr), len(value) * 2 // 3))
        return rng.choice((kept, {**value, "unknown": 1}, {str(key)[::-1]: inner for key, inner in value.items()}, list(value.values())))
    return value


def changed_value(rng: random.Random, data: bytes) -> bytes:
    """Msgpack with some of its values changed."""
    value = msgspec.msgpack.decode(data)
    paths = list(places(value))
    inner = [msgspec.Raw(msgspec.msgpack.encode(at(value, path))) for path in rng.sample(paths, min(20, len(paths)))]
    for path in rng.sample(paths, min(len(paths), rng.choice((1, 1, 1, 2, 5)))):
        with suppress(KeyError, IndexError, TypeError):  # what it stood in has been changed before
            other = _other(rng, at(value, path), inner)
            if not path:
                value = other
            else:
                at(value, path[:-1])[path[-1]] = other
    return msgspec.msgpack.encode(value)


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flipped, cut, doubled, with something in it that does not belong there."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 10))):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.choice((1, 4, 60, 1000)))
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at:end]
        elif kind == 2:
            out[at:at] = out[at:end] * rng.choice((1, 3))
        elif kind == 3:
            out[at:end] = bytes(end - at)
        elif kind == 4:
            out[at:at] = SYNC * rng.choice((1, 7, 300))
        elif kind == 5:
            del out[at:]
        else:
            out[at:at] = rng.choice((rng.randbytes(40), data[:90], b"\n" * 100))
    return bytes(out)


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _syncs(rng: random.Random, data: bytes) -> bytes:
    """Words at which blocks may begin, thousands of them, and heads of blocks that are not there."""
    at = rng.randrange(len(data))
    head = joined([Block(KIND_FRAMES, rng.randrange(4), 0, 0, b"", rng.choice((0, 1 << 10, MAX_BLOCK_BYTES)), 0)])[len(MAGIC) :]
    return data[:at] + rng.choice((SYNC, head, SYNC + head, SYNC[:3])) * rng.choice((10, 300, 2000)) + data[at:]


def _block_changed(rng: random.Random, block: Block) -> Block:
    field = rng.choice(("kind", "tier", "flags", "t_ns", "size", "check"))
    if field == "t_ns":
        return block._replace(t_ns=rng.choice((*_INTS, block.t_ns + rng.choice((-1, 1)) * rng.choice((1, made.SECOND, 1 << 40)))))
    most = {"kind": 10, "tier": 3, "flags": 8, "size": len(block.payload) + 40, "check": 1 << 32}[field]
    return block._replace(**{field: rng.randrange(most)})


def _blocks(rng: random.Random, data: bytes) -> bytes:
    """Fields of blocks changed, and blocks doubled, dropped, in another order, or of another stream."""
    blocks = split(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        i, kind = rng.randrange(len(blocks)), rng.randrange(7)
        if kind <= 1:
            blocks[i] = _block_changed(rng, blocks[i])
        elif kind == 2:
            blocks[i:i] = [blocks[i]] * rng.choice((1, 1, 60))
        elif kind == 3 and len(blocks) > 1:
            del blocks[i]
        elif kind == 4:
            j = rng.randrange(len(blocks))
            blocks[i], blocks[j] = blocks[j], blocks[i]
        elif kind == 5:
            blocks[i:i] = rng.sample(split(rng.choice(seeds())), 1)
        else:
            blocks[i] = blocks[i]._replace(payload=changed_bytes(rng, blocks[i].payload))
    return joined(blocks)


def _payloads(rng: random.Random, data: bytes, change: Callable[[random.Random, bytes], bytes] = changed_bytes) -> bytes:
    """What blocks hold, inflated, changed and deflated again."""
    blocks = split(data)
    for i in rng.sample(range(len(blocks)), min(len(blocks), rng.choice((1, 1, 2)))):
        held = plain(blocks[i])
        if held:
            with suppress(msgspec.MsgspecError):
                blocks[i] = packed(blocks[i], change(rng, held))
    return joined(blocks)


def _values(rng: random.Random, data: bytes) -> bytes:
    return _payloads(rng, data, changed_value)


_PIECES = (
    b"\x82\xa3seq\0\xa4t_ns\0", b"\x80", b"\x90", b"\0", b"\xa0", b"\xc0", b"\x98\0\0\0\xa0\0\0\0\0", b"\x82\xa3pid\0\xabstart_ticks\0",
    b"\x94\0\0\0\0", b"\x9a" + b"\0" * 10, b"\x82\xa5index\0\xa4t_ns\0",
)  # fmt: skip
"""The least that becomes a frame, a process, a thread, a GPU …"""
_FIELDS = ("procs", "infos", "gpus", "gone", "sources", "marks", "stacks", "sampled")


@cache
def bombs() -> list[Block]:
    """Blocks that are small, and large once read."""
    rows = [_constant(count, table) for count in (1000, 100_000, 390_000, 1 << 31) for table in (False, True)]
    tables = [msgspec.msgpack.encode(one) for one in rows]
    empty = Block(KIND_FRAMES, TICKS, FLAG_KEY, made.START_NS, b"")
    return [packed(empty, data) for data in tables] + [empty._replace(payload=data) for data in _arrays()]


def _arrays() -> Iterator[bytes]:
    """Compressed piece by piece: whole they would leave holes in the memory of whoever makes them, and of its children."""
    frame = b"\x91\x83\xa3seq\0\xa4t_ns\xcf" + made.START_NS.to_bytes(8, "big")
    for size in (1 << 20, 4 << 20, 15 << 20):
        for piece in _PIECES:
            pieces, times = piece * 1000, size // len(piece) // 1000
            for before in (b"", *(frame + msgspec.msgpack.encode(field) for field in _FIELDS[: 3 if size > 4 << 20 else None])):
                head = before + b"\xdd" + (1000 * times).to_bytes(4, "big")
                stream = zstandard.ZstdCompressor(level=1).compressobj()
                parts = [stream.compress(head), *(stream.compress(pieces) for _ in range(times)), stream.flush()]
                yield _ABOVE.pack(0, len(head) + len(pieces) * times) + b"".join(parts)


def _constant(count: int, table: bool) -> dict[str, Any]:
    """Columns of so many frames, of which each row takes no byte, with or without processes below."""
    columns: dict[str, Any] = {"": [count], "t_ns": [0, made.START_NS], "seq": [2, None, b"\0"]}
    if table:
        below = {"": [count, b"\0"], "start_ticks": [0, 1], "t_ns": [0, 1], "state": [0, "S"]}
        below |= {name: [2, None, b"\0"] for name in ("utime_ns", "stime_ns", "rss_bytes", "num_threads")}
        columns["procs"] = [4, b"\1" + b"\1" * min(count, 400_000), below]
    return columns


def _bombs(rng: random.Random, data: bytes) -> bytes:
    blocks = split(data)
    at = rng.randrange(1, len(blocks) + 1)
    blocks[at:at] = rng.sample(bombs(), 1) * rng.choice((1, 1, 3, 20))
    return joined(blocks)


def with_findings(data: bytes, change: Callable[[Any], object]) -> bytes:
    """A recording whose findings, as they are kept, were changed; texts are extensions of msgpack (`gputop.findings.sentence`)."""
    blocks = split(data)
    for i, block in enumerate(blocks):
        if block.kind == KIND_FINDINGS:
            told = msgspec.msgpack.decode(plain(block) or b"")
            change(told)
            blocks[i] = packed(block, msgspec.msgpack.encode(told))
    return joined(blocks)


def _findings(rng: random.Random, _: bytes) -> bytes:
    """Of the one stream that has some: only these."""
    blocks = split(seeds()[-1])
    return joined([packed(one, changed_value(rng, plain(one) or b"")) if one.kind == KIND_FINDINGS else one for one in blocks])


def _header(rng: random.Random, data: bytes) -> bytes:
    blocks = split(data)
    at = rng.choice([i for i, block in enumerate(blocks) if block.kind == KIND_HEADER])
    blocks[at] = packed(blocks[at], changed_value(rng, blocks[at].payload))
    return joined(blocks)


CHANGES = (
    (changed_bytes, 3), (_cut, 1), (_syncs, 1), (_blocks, 4), (_payloads, 3), (_values, 9), (_header, 1), (_bombs, 1), (_findings, 2),
)  # fmt: skip
"""With how often each is made."""


def made_from(number: int) -> tuple[bytes, str]:
    """The stream of a number, and what was done to it."""
    rng = random.Random(number)
    data = rng.choice(seeds()[:-1] * 4 + seeds()[-1:])
    change = rng.choices([change for change, _ in CHANGES], [often for _, often in CHANGES])[0]
    return change(rng, data), change.__name__.strip("_")


# -- what users call


def _read(path: str) -> None:
    with Recording(path) as recording:
        times = [frame.t_ns for frame in recording.frames()]
        assert times == sorted(times), "frames go back in time"
        for t_ns in (recording.start_ns, recording.end_ns, 1 << 62):
            recording.board_at(t_ns)
        assert isinstance(recording.problem, str)
        _ = recording.marks, recording.growing, recording.refresh()


def _command(*argv: str) -> None:
    code = cli.main(list(argv))
    assert code in (0, 1, 2, 3), code


def _explain(path: str) -> None:
    _command("explain", path)


def _explain_json(path: str) -> None:
    _command("explain", path, "--json", "--last", "5")


def _query(path: str) -> None:
    name = list(TABLES)[zlib.crc32(path.encode()) % len(TABLES)]
    _command("query", path, f"SELECT * FROM {name}", "--json")


def _export(path: str) -> None:
    to = ("csv", "sqlite", "perfetto", "html", "report")[zlib.crc32(path.encode()) % 5]
    out = f"{path}.{to}"
    _command(*(["report", path, "--to", "html", "-o", out] if to == "report" else ["export", path, "--to", to, "-o", out]))
    remove(out)


def remove(path: str) -> None:
    """A file or a folder, if it is there."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def _session_of(items: Iterator[Header | Frame]) -> None:
    session = Session()
    for item in items:
        session.ingest(item)
    session.engine.feed(session.board)
    list(page(session, View(width=100, height=60)))
    older, newer = session.boards_around(None, made.SECOND)
    taken = snapshot.take(older, newer, session.engine.roles, session.engine.states, None)
    msgspec.json.encode(taken, enc_hook=str)
    for t_ns in (session.oldest_ns, session.now_ns - made.SECOND):
        session.board_at(t_ns)
        _ = session.verdict_at(t_ns), session.ledger_at(t_ns), session.unix_s(t_ns)


def _replay(path: str) -> None:
    with open_recording([path]) as recording:
        recording.board_at(recording.end_ns)
        recording.board_at(recording.start_ns)

        def items() -> Iterator[Header | Frame]:
            yield recording.header
            yield from recording.frames()

        _session_of(items())


def _pipe(path: str) -> None:
    data, decoder = Path(path).read_bytes(), Decoder()

    def items() -> Iterator[Header | Frame]:
        for at in range(0, len(data), 3000):
            yield from decoder.feed(data[at : at + 3000])
        decoder.finish()

    _session_of(items())
    assert isinstance(decoder.problem, str)


def _survey(path: str) -> None:
    for news in survey([path]):
        msgspec.json.encode(news)


DRIVERS: tuple[Callable[[str], None], ...] = (_read, _explain, _query, _export, _replay, _pipe, _explain_json, _survey)
_TURNS = (*DRIVERS, _read, _pipe, _read, _explain_json, _survey)
"""The quick ones come more often."""
IMPORTED = (
    "gputop.commands.explain", "gputop.commands.query", "gputop.commands.export", "gputop.findings.text", "gputop.tables.database",
    "gputop.tables.export_csv", "gputop.tables.export_sqlite", "gputop.tables.export_perfetto", "gputop.tables.export_html",
    "gputop.commands.report", "gputop.tables.usage_text",
)  # fmt: skip
"""Before the children are made: what they import themselves would count as memory that an input took."""


class Input(NamedTuple):
    """What is read, and by which of `DRIVERS`."""

    name: str
    make: Callable[[], bytes]
    drive: Callable[[str], None]


def numbered(number: int) -> Input:
    """The input of a number."""
    return Input(str(number), lambda: made_from(number)[0], _TURNS[number % len(_TURNS)])


def read(given: Input, folder: str) -> str:
    """What went wrong, empty where nothing did."""
    data, path = given.make(), os.path.join(folder, f"{given.name}.gputop")
    name = f"{given.name} {given.drive.__name__} ({len(data)} bytes)"
    Path(path).write_bytes(data)
    _forget_peak()
    before, began_s = _memory("VmRSS"), time.process_time()
    try:
        given.drive(path)
    except UserError as error:
        if "\n" in str(error) or not str(error):
            return f"{name}: no line: {str(error)!r}"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what we look for
        return f"{name}: {''.join(traceback.format_exception(error))[-1500:]}"
    finally:
        os.unlink(path)
    grown, took_s = _memory("VmHWM") - before, time.process_time() - began_s
    over = [f"{took_s:.1f} s of CPU"] * (took_s > LEAST_S + S_PER_MB * len(data) / 1e6) + [f"{grown >> 20} MiB"] * (grown > MOST_GROWTH)
    return f"{name}: took {' and '.join(over)}" if over else ""


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(name: str) -> int:
    """Of this process, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


# -- children


def prepare() -> None:
    """Make and import what all children share."""
    seeds(), bombs()
    for module in IMPORTED:
        importlib.import_module(module)


def campaign(inputs: Sequence[Input], workers: int = 2, most_s: int = MOST_S, prepare: Callable[[], object] = prepare) -> list[str]:
    """What goes wrong in these, each read in a child that has little memory and time. ``prepare`` is called before the first child."""
    prepare()
    found: list[str] = []
    waiting = [inputs[i : i + BATCH] for i in range(0, len(inputs), BATCH)][::-1]
    running: dict[int, tuple[str, Sequence[Input]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < workers:
                batch = waiting.pop()
                pid, said = _start(batch, folder, most_s)
                running[pid] = said, batch
            pid, status = os.wait()
            if pid not in running:
                continue
            said, batch = running.pop(pid)
            told = Path(said).read_text(errors="replace").split("\0")[:-1]
            found += filter(None, told)
            if status and len(told) < len(batch):
                given, *rest = batch[len(told) :]
                found.append(f"{given.name} {given.drive.__name__}: ended by {_ending(status)}")
                waiting += filter(None, [rest])
    return found


def _ending(status: int) -> str:
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"


def _start(batch: Sequence[Input], folder: str, most_s: int) -> tuple[int, str]:
    """A child that reads inputs, and the file into which it says of each what went wrong."""
    said = os.path.join(folder, f"{batch[0].name}.said")
    pid = os.fork()
    if pid:
        return pid, said
    status = 1
    try:
        with open(said, "w", errors="replace") as file:
            _confine()
            for given in batch:
                signal.setitimer(signal.ITIMER_PROF, most_s)
                signal.setitimer(signal.ITIMER_REAL, MOST_WAIT_S)
                file.write(read(given, folder).replace("\0", "") + "\0")
                file.flush()
            status = 0
    finally:
        os._exit(status)


def _confine() -> None:
    # A test runner that has loaded pyarrow or torch maps more than that before anything is read; its stack could not grow then.
    most = max(MOST_ADDRESSES, _memory("VmSize") + MOST_ADDRESSES // 2)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.freeze()  # what the test runner keeps is not gone through for each input
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)  # not pytest's
    crash.log = _raise  # type: ignore[assignment]
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)


def _raise(error: BaseException) -> str:
    raise error


def main() -> int:
    """Read the inputs of some numbers, or of a range FROM-TO, in children; or make a file of one: `write NUMBER FILE`."""
    if sys.argv[1] == "write":
        Path(sys.argv[3]).write_bytes(made_from(int(sys.argv[2]))[0])
        return 0
    numbers = [n for word in sys.argv[1:] for first, _, last in (word.partition("-"),) for n in range(int(first), int(last or first) + 1)]
    began = time.monotonic()
    found = campaign([numbered(number) for number in numbers])
    for wrong in found:
        sys.stdout.write(f"{wrong}\n---\n")
    sys.stdout.write(f"{len(numbers)} inputs, {len(found)} went wrong, {time.monotonic() - began:.0f} s\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
