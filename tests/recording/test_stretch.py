"""A part of a recording asked for by flags: what is inside is what the whole recording says of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputop.model.frame import Frame, ProcInfo, ProcSample
from gputop.recording.reader import Recording
from gputop.tables import database
from gputop.tables.database import Database
from gputop.tables.exports import batches
from gputop.tables.schema import TABLES
from tests.recording.made import MS, START_NS, Session, record
from tests.recording.test_columns import coarse

STRETCHES_MS = [(-10_000, -9_300), (-100, 2_000), (0, 2_000), (1, 200), (50, 9_000), (4_321, 7_654), (12_000, 20_000)]
"""Since the second key frame."""


def as_collected(frame: Frame) -> Frame:
    """Some processes are read once a second, the probe in every second tick, all anew in a key frame."""
    frame = coarse(frame)
    if not frame.key:
        rare = {proc.pid for proc in frame.procs[-3:]}
        frame.procs = [proc for proc in frame.procs if proc.pid not in rare or proc.pid % 10 == frame.seq % 10]
        frame.probes = None if frame.seq % 2 else frame.probes
    return frame


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """25 s with a key frame every 10 s; two GPUs, eight processes, probes."""
    path: Path = tmp_path_factory.mktemp("stretch") / "a.gputop"
    record(path, map(as_collected, Session(2, 8, threads=3).frames(250)))
    with Recording(str(path)) as recording:
        yield recording


def rows_of(recording: Recording, start_ns: int, end_ns: int, table: str) -> list[dict[str, Any]]:
    names, rows = Database(recording, start_ns, end_ns).ask(f"SELECT * FROM {table}")
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("table", [name for name, spec in TABLES.items() if spec.path])
def test_rows_are_those_of_the_whole(recording: Recording, table: str) -> None:
    whole = rows_of(recording, 0, 1 << 62, table)
    for since_ms, until_ms in STRETCHES_MS:
        start_ns, end_ns = (recording.chunks()[1].t_ns + ms * MS for ms in (since_ms, until_ms))
        inside = [row for row in whole if start_ns <= row["t_ns"] < end_ns]
        part = rows_of(recording, start_ns, end_ns, table)
        if table == "proc":  # whose switches are whole numbers, in each row by what the one before was rounded to
            assert sums(part) == pytest.approx(sums(inside), abs=1)
            whole_numbers = ("thread_switches", "thread_offcpu_s")
            inside, part = ([{k: v for k, v in row.items() if k not in whole_numbers} for row in rows] for rows in (inside, part))
        assert part == inside
    absent = ("mark", "stack", "net", "rdma", "cgroup", "main_thread", "hardware", "nic", "file_system", "serving", "collective",
              "driver_error")
    assert whole or table in absent


def sums(rows: list[dict[str, Any]]) -> dict[int, int]:
    """pid -> switches of all its threads."""
    found: defaultdict[int, int] = defaultdict(int)
    for row in rows:
        found[row["pid"]] += row["thread_switches"] or 0
    return found


def test_an_export_of_a_part_loses_nothing_either(recording: Recording) -> None:
    wanted = {"proc": ["t_ns", "pid", "oncpu_s", "stall_ms"], "preempt": ["t_ns", "culprit_tid", "lost_s"], "gpu": ["t_ns", "energy_j"]}
    start_ns = recording.chunks()[1].t_ns

    def exported(since_ns: int) -> dict[str, list[Any]]:
        found: defaultdict[str, list[Any]] = defaultdict(list)
        for table, rows in batches(recording, since_ns, 1 << 62, wanted):
            found[table] += [row for row in rows if row[0] >= start_ns]
        return found

    assert exported(start_ns) == exported(0)


def test_who_ended_before_is_not_seen(tmp_path: Path) -> None:
    frames = [Frame(i, START_NS + i * 100 * MS, key=i % 100 == 0, gone=[8] if i == 120 else []) for i in range(150)]
    for frame in frames:
        alive = [pid for pid in (7, 8) if pid == 7 or frame.seq < 120]
        frame.infos = [ProcInfo(pid, 1, comm=str(pid)) for pid in alive] if frame.key else []
        frame.procs = [ProcSample(pid, 1, frame.t_ns, "S", 0, 0, 0, 1) for pid in alive]
    record(tmp_path / "ended.gputop", frames)
    with Recording(str(tmp_path / "ended.gputop")) as recording:
        seen = [[row["pid"] for row in rows_of(recording, START_NS + ms * MS, 1 << 62, "process")] for ms in (11_000, 12_500)]
    assert seen == [[7, 8], [7]]


def test_rows_are_the_same_however_many_are_inserted_at_once(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [name for name in TABLES if name not in ("incident", "ledger", "member")]
    at_once = {table: rows_of(recording, 0, 1 << 62, table) for table in tables}
    for values in (1, 700):
        monkeypatch.setattr(database, "WORTH_A_CALL", values)
        assert {table: rows_of(recording, 0, 1 << 62, table) for table in tables} == at_once
