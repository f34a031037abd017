"""Files of strangers and of ourselves: what claims too much is refused, what is missing is said, what we wrote is read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputop import cli
from gputop.model.board import Board
from gputop.model.frame import Frame, Gpu, Host, Probes, ProcInfo, ProcSample
from gputop.recording.chunks import Decoder, Told
from gputop.recording.format import (
    FLAG_KEY,
    KIND_FRAMES,
    KIND_HEADER,
    MAGIC,
    SYNC,
    TICKS,
    FormatError,
    pack,
    pack_end,
    pack_frames,
    pack_header,
)
from gputop.recording.reader import Recording
from tests.recording import fuzz, made
from tests.recording.fuzz import Block, Input

KEY = Block(KIND_FRAMES, TICKS, FLAG_KEY, made.START_NS, b"")


def of_block(kind: Block, value: Any) -> bytes:
    """A stream of one block that holds this, or this msgpack, behind three that are sound."""
    data = value if isinstance(value, bytes) else msgspec.msgpack.encode(value)
    sound = b"".join(pack_frames([frame]) for frame in made.Session(1, 3, threads=2).frames(3))
    late = kind._replace(t_ns=kind.t_ns + made.SECOND)
    return pack_header(made.HEADER) + sound + fuzz.joined([fuzz.packed(late, data)])[len(MAGIC) :]


def in_units(unit: Any) -> bytes:
    """Frames whose times are told by an unknown code."""
    return of_block(KEY, {"": [4], "t_ns": [unit, None, b"\1\1\1\1\1"], "seq": [0, 1]})


def many(piece: bytes, count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + piece * count


def below(name: str, piece: bytes, count: int) -> bytes:
    """A frame with so many of something."""
    t_ns = (made.START_NS + made.SECOND).to_bytes(8, "big")
    return b"\x91\x83\xa3seq\0\xa4t_ns\xcf" + t_ns + msgspec.msgpack.encode(name) + many(piece, count)


def holes(count: int) -> bytes:
    """A byte is lost between any two of so many blocks."""
    frames = [Frame(i, made.START_NS + i * made.MS, key=not i) for i in range(count)]
    return pack_header(made.HEADER) + b"\0".join(pack_frames([frame]) for frame in frames) + pack_end(frames[-1].t_ns)


def header(**lie: Any) -> bytes:
    payload = msgspec.msgpack.encode(msgspec.structs.asdict(made.HEADER) | lie)
    return MAGIC + pack(KIND_HEADER, payload, t_ns=made.HEADER.t_ns) + pack_frames([Frame(0, made.START_NS, key=True)])


FRAME = b"\x82\xa3seq\0\xa4t_ns\0"
LONG = fuzz.frames_of_a_session(8, 50 * made.SECOND)
HOSTILE: dict[str, Callable[[], bytes]] = {
    "unit-bytes": lambda: in_units(bytes(1 << 20)),
    "unit-text": lambda: in_units("x" * 10_000),
    "unit-list": lambda: in_units([[0] * 1000]),
    "unit-huge": lambda: in_units(20 * 10**12),
    "unit-none": lambda: in_units(None),
    "unit-float": lambda: in_units(1e300),
    "unit-0": lambda: in_units(0),
    "rows": lambda: of_block(KEY, {"": [390_000], "t_ns": [0, 1], "seq": [0, 1]}),
    "rows-true": lambda: of_block(KEY, {"": [True], "t_ns": [0, 1], "seq": [0, 1]}),
    "frames": lambda: of_block(KEY, many(FRAME, 1_000_000)),
    "processes": lambda: of_block(KEY, below("infos", b"\x82\xa3pid\0\xabstart_ticks\0", 800_000)),
    "samples": lambda: of_block(KEY, below("procs", b"\x98\0\0\0\xa0\0\0\0\0", 1_600_000)),
    "gpus": lambda: of_block(KEY, below("gpus", b"\x82\xa5index\0\xa4t_ns\0", 1_000_000)),
    "no-lists": lambda: without_lists(),
    "nested": lambda: of_block(KEY, b"\x91" * 1_000_000 + b"\xc0"),
    "holes": lambda: holes(2000),
    "syncs": lambda: pack_header(made.HEADER) + SYNC * 250_000,
    "many-bombs": lambda: fuzz.joined([*fuzz.split(pack_header(made.HEADER)), *fuzz.bombs()]),
    "one-bomb-often": lambda: fuzz.joined([*fuzz.split(pack_header(made.HEADER)), *[KEY._replace(payload=big_frame())] * 100]),
    "cpus": lambda: header(cpus=1 << 40),
    "no-cpus": lambda: header(cpus=0),
    "ticks": lambda: header(clock_tick_hz=0),
    "interval": lambda: header(interval_ns=1),
    "slept": lambda: header(slept=[(i, i) for i in range(100_000)]),
    "deep-children": lambda: pack_header(made.HEADER) + pack_frames([deep(3000)]),
    "wide-children": lambda: pack_header(made.HEADER) + pack_frames([deep(3000, wide=True)]),
}  # fmt: skip


def big_frame() -> bytes:
    """A hundred bytes that become 55,000 processes."""
    return fuzz.packed(KEY, below("infos", b"\x82\xa3pid\0\xabstart_ticks\0", 55_000)).payload


def without_lists() -> bytes:
    """Frames whose processes are not told, as what may be absent is."""
    return of_block(KEY, {"": [1], "t_ns": [0, made.START_NS + made.SECOND], "seq": [0, 1], "procs": [4, b"\1\xff", {"": [0]}]})


def deep(count: int, wide: bool = False) -> Frame:
    """Processes that are each other's children."""
    infos = [ProcInfo(1000 + i, 5, ppid=1000 if wide else 999 + i, comm="python3") for i in range(count)]
    procs = [ProcSample(info.pid, 5, made.START_NS, "S", 0, 0, 4096, 1) for info in infos]
    return Frame(0, made.START_NS, key=True, infos=infos, procs=procs, gpus=[Gpu(0, made.START_NS, util_pct=5.0)])


@pytest.mark.soak
def test_small_files_that_claim_much_are_refused_in_little_time_and_memory() -> None:
    inputs = [Input(f"{name}-{drive.__name__}", make, drive) for name, make in HOSTILE.items() for drive in fuzz.DRIVERS]
    assert fuzz.campaign(inputs) == []


@pytest.mark.parametrize("name", ["unit-bytes", "rows", "frames", "processes", "no-lists", "nested"])
def test_what_is_refused_is_said_and_the_rest_is_read(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.gputop"
    path.write_bytes(HOSTILE[name]())
    with Recording(str(path)) as recording:
        assert len(list(recording.frames())) == 3
        assert "damaged" in recording.problem
    assert cli.main(["query", str(path), "SELECT * FROM gpu"]) == 0
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "lie", [{"cpus": 1 << 40}, {"clock_tick_hz": 0}, {"interval_ns": 0}, {"unix_ns": -1}, {"memory_bytes": -5}], ids=str
)
def test_a_header_whose_numbers_cannot_be_is_refused(lie: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    path.write_bytes(header(**lie))
    with pytest.raises(FormatError):
        Recording(str(path))
    with pytest.raises(FormatError, match="cannot be"):
        Decoder().feed(path.read_bytes())


@pytest.mark.parametrize(
    "lie",
    [{"t_ns": 1 << 63}, {"t_ns": -1}, {"seq": 1 << 62}, {"missed": -1}, {"gpus": [{"index": 1 << 40, "t_ns": 5}]},
     {"host": {"t_ns": 5, "cpus": [[1 << 40, 0, 0, 0, 0, 0, 0]]}}, {"probes": {"t_ns": 5, "share": float("nan")}},
     {"probes": {"t_ns": 5, "share": 1e306}}, {"probes": {"t_ns": 5, "launches": [[7, 1e306]]}}, {"probes": {"t_ns": 5, "share": -1}}],
    ids=str,
)  # fmt: skip
def test_a_frame_whose_numbers_cannot_be_is_left_out_and_counted(lie: dict[str, Any]) -> None:
    decoder = Decoder()
    decoder.feed(pack_header(made.HEADER))
    assert decoder.feed(pack(KIND_FRAMES, msgspec.msgpack.encode([{"seq": 1, "t_ns": 5, **lie}]))) == []
    assert decoder.lost_bytes


def test_a_reading_that_is_no_number_was_not_taken() -> None:
    nan, inf = float("nan"), float("inf")
    gpus = [Gpu(0, 5, util_pct=nan, power_w=5.0, temp_c=-inf),
            Gpu(1, 5, util_pct=1.7e308, sm_active_pct=1.7e308, power_w=-1e306, temp_c=-5.0)]  # fmt: skip
    frame = Frame(0, 5, gpus=gpus, host=Host(5, load1=inf))
    [_, found] = Decoder().feed(pack_header(made.HEADER) + pack_frames([frame]))
    assert isinstance(found, Frame)
    assert found.host is not None
    assert (found.gpus[0].util_pct, found.gpus[0].power_w, found.gpus[0].temp_c, found.host.load1) == (None, 5.0, None, None)
    assert (found.gpus[1].util_pct, found.gpus[1].sm_active_pct, found.gpus[1].power_w, found.gpus[1].temp_c) == (None, None, None, -5.0)


def test_too_little_memory_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Recording, "__init__", fail)
    assert cli.main(["explain", str(tmp_path / "a.gputop")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "memory" in said
    assert "bug" not in said


@pytest.mark.parametrize(
    ("module", "make", "take", "kept"),
    [("gputop.model.board", Board, Board.fold, "infos"), ("gputop.recording.chunks", Told, Told.note, "_infos")],
    ids=["board", "decoder"],
)
def test_what_is_remembered_of_processes_does_not_grow_for_ever(
    module: str, make: Callable[[], Any], take: Callable[[Any, Frame], object], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stream without key frames that tells of other processes in each."""
    monkeypatch.setattr(f"{module}.MOST_ENTRIES", 2000)
    memory, most = make(), 0
    for i in range(8):
        take(memory, Frame(i, i, infos=[ProcInfo(pid, 1) for pid in range(i * 500, (i + 1) * 500)]))
        most = max(most, len(getattr(memory, kept)))
    assert 500 <= most <= 3000


# -- losses


def told(path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """What each command says on standard error."""
    commands: list[list[str]] = [
        ["explain"], ["explain", "--json"], ["query", "SELECT count(*) FROM gpu"], ["export", "--to", "csv", "-o", f"{path}.csv"],
        ["export", "--to", "perfetto", "-o", f"{path}.json"], ["export", "--to", "sqlite", "-o", f"{path}.sqlite"],
    ]  # fmt: skip
    for first, *rest in commands:
        assert cli.main([first, str(path), *rest]) == 0
        yield f"{first} {rest}: {capsys.readouterr().err}"


@pytest.mark.parametrize("seed", range(len(fuzz.SEEDS)))
def test_a_stream_that_is_cut_anywhere_says_so(seed: int, tmp_path: Path) -> None:
    data, path = fuzz.seeds()[seed], tmp_path / "a.gputop"
    begin = len(fuzz.joined(fuzz.split(data)[:1]))  # its header
    for length in sorted({*range(begin, len(data), 211), *range(len(data) - 40, len(data))}):
        path.write_bytes(data[:length])
        with Recording(str(path)) as recording:
            deep = list(recording.frames())
            assert "cut short" in recording.problem, length
        decoder = Decoder()
        assert len(decoder.feed(data[:length])) >= min(1, len(deep))
        decoder.finish()
        assert not decoder.ended, length
    path.write_bytes(data)
    with Recording(str(path)) as recording:
        assert len(list(recording.frames())) in (5, 8, 38)
        assert recording.problem == ""


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("rest", [0, 1, 30, 300])
def test_every_command_says_that_the_end_is_missing(kept: bool, rest: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = list(made.Session(1, 3, threads=2).frames(40))
    stream = pack_header(made.HEADER) + b"".join(pack_frames([frame]) for frame in frames)
    data = stream if kept else fuzz._recorded(frames)
    whole = len(stream) - len(pack_frames(frames[-1:])) if kept else fuzz_end(data)
    path = tmp_path / "a.gputop"
    path.write_bytes(data[: whole + rest])
    for said in told(path, capsys):
        assert "cut short" in said
        assert (f"{rest} bytes of a block" in said) == bool(rest), said


def fuzz_end(data: bytes) -> int:
    """Where the last block of frames begins."""
    *_, last = [len(fuzz.joined(fuzz.split(data)[:i])) for i, block in enumerate(fuzz.split(data)) if block.kind == KIND_FRAMES]
    return last


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, len(fuzz.SEEDS)))])
def test_a_piece_that_is_missing_in_the_middle_is_said(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks, path = fuzz.split(fuzz.seeds()[seed]), tmp_path / "a.gputop"
    frames = [i for i, block in enumerate(blocks) if block.kind == KIND_FRAMES and block.tier == TICKS]
    for i in frames[1 : -1 : 1 + len(frames) // 10]:
        path.write_bytes(fuzz.joined(blocks[:i] + blocks[i + 1 :]))
        with Recording(str(path)) as recording:
            read = [frame.seq for frame in recording.frames()]
            problem = recording.problem
        if read == sorted({*range(8)}):  # its seconds told the same
            continue
        assert "missing frames" in problem or "damaged" in problem, (i, read)
        for said in told(path, capsys):
            assert "missing" in said or "damaged" in said
        for out in tmp_path.glob("a.gputop.*"):
            fuzz.remove(str(out))


def test_a_gap_in_a_long_recording_is_said_across_the_readers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = list(made.Session(1, 3, threads=2).frames(120, 5 * made.SECOND, key_every=10))
    path = tmp_path / "a.gputop"
    made.record(path, frames[:50] + frames[70:])
    assert cli.main(["explain", str(path)]) == 0
    assert "missing frames: 20, in 1 place" in capsys.readouterr().err


def test_damage_is_said_although_what_was_found_is_known(tmp_path: Path) -> None:
    """Where nobody reads the frames anew."""
    data, path = bytearray(fuzz.seeds()[1]), tmp_path / "a.gputop"
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with Recording(str(path)) as recording:
        recording.verify()
        assert "damaged" in recording.problem


# -- what we wrote


def without(rng: random.Random, value: Any, share: float) -> Any:
    """The same without some of its parts that may be absent."""
    if isinstance(value, list):
        return [without(rng, one, share) for one in value if rng.random() >= share / 4]
    if not isinstance(value, msgspec.Struct):
        return value
    kept = {}
    for field in msgspec.structs.fields(value):
        gone = not field.required and field.name not in ("key", "t_ns") and rng.random() < share
        kept[field.name] = _default(field) if gone else without(rng, getattr(value, field.name), share)
    return type(value)(**kept)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def bare(parts: tuple[str, ...], t_ns: int, seq: int) -> Frame:
    """A frame of these parts alone, in which nothing was read."""
    told: dict[str, Any] = {
        "gpus": [Gpu(0, t_ns)], "host": Host(t_ns), "probes": Probes(t_ns), "infos": [ProcInfo(5, 1)],
        "procs": [ProcSample(5, 1, t_ns, "S", 0, 0, 0, 1)],
    }  # fmt: skip
    return Frame(seq, t_ns, key=seq % 7 == 0, **{name: told[name] for name in parts})


PARTS = [parts for count in range(6) for parts in itertools.combinations(("gpus", "host", "probes", "infos", "procs"), count)]


def written(seed: int, interval_ns: int) -> list[Frame]:
    """Frames of which each lacks something else: each combination of parts, then readings at random."""
    rng, frames = random.Random(seed), list(made.Session(2, 4, threads=3, seed=seed).frames(24, interval_ns, key_every=7))
    thinned = [without(rng, frame, rng.choice((0.1, 0.5, 0.9))) for frame in frames]
    chosen = PARTS if not seed else rng.sample(PARTS, 8)
    late = [bare(parts, frames[-1].t_ns + (i + 1) * interval_ns, len(frames) + i) for i, parts in enumerate(chosen)]
    return [*thinned, *late]


def as_recorded(frames: list[Frame]) -> bytes:
    return fuzz._recorded(frames)


def as_kept(frames: list[Frame]) -> bytes:
    return pack_header(made.HEADER) + b"".join(pack_frames([frame]) for frame in frames) + pack_end(frames[-1].t_ns)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 6), marks=pytest.mark.soak)], ids=["some", "more"])
@pytest.mark.parametrize("interval_ns", [100 * made.MS, 15 * made.SECOND], ids=["short", "long"])
def test_what_was_written_without_some_of_its_parts_is_read_by_all(interval_ns: int, seeds: range, tmp_path: Path) -> None:
    inputs = []
    for seed, (i, write) in itertools.product(seeds, enumerate((as_recorded, as_kept))):
        frames = written(seed, interval_ns)
        data = write(frames)
        path = tmp_path / "a.gputop"
        path.write_bytes(data)
        with Recording(str(path)) as recording:
            assert len(list(recording.frames())) == len(frames)
            assert recording.problem == "", seed
        inputs += [Input(f"{seed}-{i}-{drive.__name__}", lambda data=data: data, drive) for drive in fuzz.DRIVERS]  # type: ignore[misc]
    assert fuzz.campaign(inputs) == []


@pytest.mark.soak
def test_a_part_may_be_absent_for_ever() -> None:
    """Each combination by itself, for minutes."""
    inputs = []
    for parts in PARTS:
        frames = [bare(parts, made.START_NS + i * 20 * made.SECOND, i) for i in range(20)]
        data = as_recorded(frames)
        inputs += [Input(f"{'-'.join(parts) or 'nothing'}-{drive.__name__}", lambda data=data: data, drive) for drive in fuzz.DRIVERS]  # type: ignore[misc]
    assert fuzz.campaign(inputs) == []
