"""Columns: the same frames come back, to the precision that a recording keeps."""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop.model.frame import (
    CgroupSample,
    CudaCall,
    Frame,
    Gpu,
    GpuProc,
    Host,
    Mark,
    MigInstance,
    Probes,
    ProcInfo,
    ProcSample,
    Psi,
    Stack,
    ThreadSample,
)
from gputop.recording.columns import PEAKS, SAME, TENTHS, UNITS, ColumnDecoder, ColumnEncoder, ColumnError, pack_integers, unpack_integers
from tests.recording.made import Session


def coarse(value: Any, name: str = "", struct: str = "") -> Any:
    """``value`` as a recording keeps it, worked out field by field."""
    if isinstance(value, msgspec.Struct):
        owner = type(value).__name__
        return type(value)(*(coarse(getattr(value, field), field, owner) for field in value.__struct_fields__))
    if isinstance(value, list):
        return [coarse(item) for item in value]
    unit = UNITS.get(f"{struct}.{name}") or UNITS.get(name)
    if isinstance(value, int) and unit:
        return value // unit * unit
    if isinstance(value, int) and name in PEAKS:
        return ceil(Fraction(value, PEAKS[name])) * PEAKS[name]
    if isinstance(value, float) and name in TENTHS and abs(value) < 1e9:
        return round(value * 10) / 10
    return value


def through(*pieces: list[Frame]) -> list[Frame]:
    """The frames of the last of some pieces of one chunk."""
    encoder, decoder = ColumnEncoder(), ColumnDecoder()
    return [decoder.decode(encoder.encode(frames)) for frames in pieces][-1]


def table(*pieces: list[Frame]) -> Any:
    """The columns of the last of some pieces."""
    encoder = ColumnEncoder()
    return [msgspec.msgpack.decode(encoder.encode(frames)) for frames in pieces][-1]


@pytest.mark.parametrize(("gpus", "procs"), [(1, 1), (1, 10), (4, 30)])
def test_a_session_comes_back(gpus: int, procs: int) -> None:
    frames = list(Session(gpus, procs).frames(120))
    blocks = [frames[i : i + 10] for i in range(0, 120, 10)]
    for i in range(0, 120, 10):
        assert through(*blocks[: i // 10 + 1]) == [coarse(frame) for frame in frames[i : i + 10]]
        assert through(frames[i : i + 10]) == [coarse(frame) for frame in frames[i : i + 10]]


def test_what_was_kept_once_is_kept_exactly() -> None:
    frames = [coarse(frame) for frame in Session(2, 8).frames(10)]
    assert through(frames) == frames


EVERYTHING = [
    Frame(0, 10_000, key=True, gone=[4, 5], procs=[ProcSample(1, 2, 10_000, "S", 0, 0, 0, 1, syscall_arg=2**64 - 1, swapin_delay_ns=0)]),
    Frame(1, 20_000, gpus=[Gpu(0, 20_000, util_pct=float("inf"), mig=[], procs=None, lost=True),
                           Gpu(1, 20_000, mig=[MigInstance(0, uuid="x")], procs=[GpuProc(1, sm_pct=0.1)], temp_c=1e300)]),
    Frame(2, 30_000, host=Host(30_000, cgroups=[CgroupSample("/a", 2, quota_cpus=0.5, psi=Psi(None, 1)), CgroupSample("/b", 1)])),
    Frame(3, 30_000, marks=[Mark(30_000, "a\x1b[2J"), Mark(30_000, "")], stacks=[Stack(1, 1, 0, python=["a (b.py:1)"], error="no")]),
    Frame(4, 40_000, probes=Probes(40_000, calls=[CudaCall(1, "cuCtxSynchronize", 5, 7000, 3, {-1: 4, 70: 2**62})], lost={"a": 1},
                                   share=0.089)),
    Frame(5, 50_000, infos=[ProcInfo(7, 8, cmdline=["é", ""], env={"RANK": "0"}, uses_cuda=None)]),
]  # fmt: skip


def test_every_kind_of_value_comes_back() -> None:
    assert through(EVERYTHING) == [coarse(frame) for frame in EVERYTHING]
    for frame in EVERYTHING:
        assert through([frame]) == [coarse(frame)]


def test_a_main_thread_that_differs_is_kept_as_it_is() -> None:
    procs = [
        ProcSample(7, 1, 0, "R", 0, 0, 0, 2, 500_000, 200_000, 3, 1, 2, threads=[ThreadSample(7, 500_000, 200_000, 3, "R", 1, 2)]),
        ProcSample(8, 1, 0, "R", 0, 0, 0, 2, 500_000, 200_000, 3, 1, 2, threads=[ThreadSample(8, 600_000, 200_000, 3, "R", 1, 2)]),
        ProcSample(9, 1, 0, "R", 0, 0, 0, 2, threads=[ThreadSample(9, 0, 0, 0, None, None, None), ThreadSample(10, 0, 0, 0)]),
    ]
    frames = [Frame(0, 0, procs=procs), Frame(1, 0, procs=procs[::-1])]
    assert through(frames) == frames


def test_a_main_thread_that_repeats_its_process_takes_no_room() -> None:
    main, later = ThreadSample(7, 500_000, 200_000, 3, "R", 1, 2), ThreadSample(7, 900_000, 200_000, 4, "S", 2, 2)
    frames = [
        Frame(0, 0, procs=[ProcSample(7, 1, 0, "R", 0, 0, 0, 2, 500_000, 200_000, 3, 1, 2, threads=[main])]),
        Frame(1, 0, procs=[ProcSample(7, 1, 0, "S", 0, 0, 0, 2, 900_000, 200_000, 4, 2, 2, threads=[later])]),
    ]
    assert through(frames) == frames
    below = table(frames)["procs"][2]["threads"][2]
    assert [below[name] for name in ("vol", "invol")] == 2 * [[SAME, None]]
    assert below["oncpu_ns"] == below["run_delay_ns"] == [2, None, b"\0"]


def test_a_value_that_is_absent_for_a_block_goes_on_from_where_it_stood() -> None:
    procs = [ProcSample(pid, 1, 10_000, "S", 5, 6, 7, 1, rchar_bytes=pid * 10**9) for pid in (1, 2)]
    absent = [msgspec.structs.replace(proc, rchar_bytes=None if proc.pid == 1 else 2 * 10**9 + 1) for proc in procs]
    again = [msgspec.structs.replace(proc, rchar_bytes=proc.pid * 10**9 + 2) for proc in procs]
    blocks = [[Frame(seq, 0, procs=told)] for seq, told in enumerate((procs, absent, again))]
    assert through(*blocks) == blocks[-1]
    assert through(*blocks[:2]) == blocks[1]
    steps = [table(*blocks[:count])["procs"][2]["rchar_bytes"][-1] for count in (2, 3)]
    assert steps == [pack_integers([0, 1]), pack_integers([2, 1])]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50))
def test_integers_of_every_width_come_back(numbers: list[int]) -> None:
    assert unpack_integers(pack_integers(numbers), len(numbers)) == numbers


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_integers_beyond_64_bits_are_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        pack_integers([1, number])


def test_subjects_that_pause_go_on_from_where_they_stood() -> None:
    procs = [ProcSample(pid, 1, 10_000, "S", pid * 10**12, 6, 7, 1, vol=None if pid == 3 else pid * 10**9) for pid in range(1, 6)]
    later = [msgspec.structs.replace(proc, utime_ns=proc.utime_ns + 1) for proc in procs]
    blocks = [[Frame(0, 0, procs=procs)], [Frame(1, 0, procs=[later[4], later[0]])], [Frame(2, 0, procs=later[::-1])]]
    assert through(*blocks) == blocks[-1]
    steps = [table(*blocks[:count])["procs"][2]["utime_ns"][-1] for count in (2, 3)]
    assert steps == [pack_integers([1, 1]), pack_integers([0, 1, 1, 1, 0])]


counts = st.integers(0, 2**63 - 1)
maybe = st.none() | st.integers(-(2**63), 2**64 - 1)
switches = st.none() | st.integers(0, 2**60)
threads = st.builds(
    ThreadSample, tid=st.integers(1, 5), oncpu_ns=counts, run_delay_ns=counts, timeslices=st.integers(0, 2**60), vol=switches
)  # fmt: skip
samples = st.builds(
    ProcSample, pid=st.integers(1, 4), start_ticks=counts, t_ns=counts, state=st.text(max_size=2), utime_ns=counts, stime_ns=counts,
    rss_bytes=counts, num_threads=counts, oncpu_ns=st.none() | counts, vol=switches, invol=switches, timeslices=switches, syscall_arg=maybe,
    wchan=st.none() | st.text(max_size=3), threads=st.lists(threads, max_size=3),
)  # fmt: skip
gpus = st.builds(
    Gpu, index=st.integers(0, 2), t_ns=counts, util_pct=st.none() | st.floats(allow_nan=False), power_instant=st.none() | st.booleans(),
    missing=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)  # fmt: skip
made_frames = st.builds(
    Frame, seq=counts, t_ns=counts, key=st.booleans(), procs=st.lists(samples, max_size=4), gpus=st.lists(gpus, max_size=2)
)  # fmt: skip


@pytest.mark.parametrize("examples", [20, pytest.param(400, marks=pytest.mark.soak)])
def test_any_frames_come_back(examples: int) -> None:
    some, others = st.lists(made_frames, min_size=1, max_size=5), st.lists(made_frames, min_size=1, max_size=3)
    settings(max_examples=examples, deadline=None)(given(some, others)(come_back))()


def come_back(frames: list[Frame], before: list[Frame]) -> None:
    assert through(before, frames) == [coarse(frame) for frame in frames]


def _decode(columns: Any) -> list[Frame]:
    return ColumnDecoder().decode(msgspec.msgpack.encode(columns))


def test_fields_of_the_future_are_skipped_and_missing_ones_absent() -> None:
    columns = table(list(Session(1, 3).frames(10)))
    columns["colour"] = [0, "blue"]
    procs = columns["procs"][2]
    procs["mood"] = [99, "no such code"]
    del procs["minflt"]
    frames = _decode(columns)
    assert len(frames) == 10
    assert frames[0].procs[0].minflt is None
    assert frames[0].procs[0].num_threads > 0


def test_made_up_tables_are_refused_within_bounds() -> None:
    good = table(list(Session(1, 3).frames(10)))
    for rows in (1 << 60, -1, "ten", 11, 400_001, True):
        with pytest.raises(ColumnError):
            _decode(good | {"": [rows]})
    columns: list[object] = [[], [0], 7, [2, None, b""], [2, b"\1", b"\0"], [3, None, b"\0"], [1, [5] * 11], [4, b"\1" + b"\5" * 10]]
    for column in [*columns, [4, b"\x08" + b"\x7f" * 80, {"": [0]}], [5, b"\0", b"\0", b"\0"]]:
        for name in ("t_ns", "procs"):
            with pytest.raises((ValueError, msgspec.MsgspecError)):
                _decode(good | {name: column})


def test_what_must_be_there_is_not_absent() -> None:
    columns = table(list(Session(1, 3).frames(10)))
    procs = columns["procs"][2]
    procs["utime_ns"][1] = b"\1" * procs[""][0]
    with pytest.raises(ColumnError, match="absent that must be there"):
        _decode(columns)


def test_a_table_shorter_than_its_lists_is_refused() -> None:
    columns = table(list(Session(1, 3).frames(10)))
    with pytest.raises(ColumnError, match="shorter than its lists"):
        _decode(columns | {"cost": [4, bytes([1]) + bytes([1] * 10), {"": [0]}]})


@pytest.mark.parametrize("times", [200, pytest.param(2000, marks=pytest.mark.soak)])
def test_broken_bytes_raise_nothing_else(times: int) -> None:
    rng = random.Random(times)
    data = ColumnEncoder().encode(list(Session(2, 5, threads=3).frames(10)))
    for _ in range(times):
        broken = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            frames = ColumnDecoder().decode(bytes(broken))
        except (ValueError, msgspec.MsgspecError, RecursionError):
            continue
        assert all(isinstance(frame, Frame) for frame in frames)
