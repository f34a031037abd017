"""Ingero's traces, made here with its own schema (0.8 and the older one without aggregates)."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gputop import cli
from gputop.model.frame import Frame, Header
from gputop.recording import ingero, writer
from gputop.recording.format import KIND_INDEX, SYNC
from gputop.recording.ingero import read
from gputop.recording.reader import Recording
from gputop.recording.writer import write_all
from gputop.stream.session import Session
from gputop.system.errors import UserError
from gputop.tables.database import Database
from gputop.tui.draw.lanes import all_lanes
from gputop.tui.draw.view import View

T0 = 1_790_000_000_000_000_000
MINUTE = 60_000_000_000
OPS = [(1, 5, "cudaStreamSync"), (1, 3, "cudaLaunchKernel"), (4, 4, "cuCtxSynchronize"), (3, 1, "sched_switch"), (6, 1, "tcp_retransmit")]


def make(path: Path, aggregates: bool = True) -> None:
    with sqlite3.connect(path) as db:
        db.executescript("""
          CREATE TABLE events (id TEXT, timestamp INTEGER, pid INTEGER, tid INTEGER, source INTEGER, op INTEGER, duration INTEGER,
            gpu_id INTEGER, arg0 INTEGER, arg1 INTEGER, ret_code INTEGER, rank INTEGER, world_size INTEGER);
          CREATE TABLE ops (source_id INTEGER, op_id INTEGER, name TEXT, description TEXT);
          CREATE TABLE process_names (pid INTEGER PRIMARY KEY, name TEXT, seen_at INTEGER);
          CREATE TABLE sessions (started_at INTEGER, node TEXT, kernel TEXT, cpu_cores INTEGER, mem_total INTEGER, gpu_model TEXT,
            ingero_ver TEXT);
          CREATE TABLE system_snapshots (timestamp INTEGER, cpu_pct REAL, mem_pct REAL, mem_avail INTEGER, swap_mb INTEGER, load_avg REAL);
          CREATE TABLE causal_chains (detected_at INTEGER, severity TEXT, summary TEXT, recommendations TEXT);""")
        db.executemany("INSERT INTO ops VALUES (?, ?, ?, '')", OPS)
        db.execute("INSERT INTO process_names VALUES (77, 'train.py', 0)")
        db.execute("INSERT INTO sessions VALUES (?, 'node3', '6.8', 4, 16000, 'RTX 4090', '0.17.0')", (T0,))
        for i in range(50):
            event = (str(i), T0 + i * 200_000_000, 77, 78, 1, 5, 1_000_000 + i, 0, 0, 0, 0, 2, 4)
            db.execute(f"INSERT INTO events VALUES ({','.join('?' * 13)})", event)
        db.execute(f"INSERT INTO events VALUES ({','.join('?' * 13)})", ("s", T0, 77, 78, 3, 1, 9, 0, 0, 0, 0, 2, 4))
        db.execute(f"INSERT INTO events VALUES ({','.join('?' * 13)})", ("r", T0 + 7, 0, 0, 6, 1, 0, 0, 0, 0, 0, None, None))
        db.executemany("INSERT INTO system_snapshots VALUES (?, 75, 50, 8000, 0, 3.5)", [(T0 + i * 1_000_000_000,) for i in range(10)])
        db.execute("INSERT INTO causal_chains VALUES (?, 'HIGH', 'sync\x1b[2J is slow', '[\"raise nice\"]')", (T0 + 5_000_000_000,))
        if aggregates:
            columns = ("bucket", "source", "op", "pid", "count", "stored", "sum_dur", "min_dur", "max_dur", "sum_arg0")
            db.execute(f"CREATE TABLE event_aggregates ({', '.join(f'{name} INTEGER' for name in columns)})")
            bucket = T0 - T0 % MINUTE
            db.execute("INSERT INTO event_aggregates VALUES (?, 1, 3, 77, 24000, 0, 120000000, 1, 90000, 0)", (bucket,))


def test_what_lies_in_the_log_of_a_trace_that_grows_is_there_too(tmp_path: Path) -> None:
    make(tmp_path / "in.db")
    with closing(sqlite3.connect(tmp_path / "in.db")) as db:
        db.execute("PRAGMA journal_mode = WAL")
        late = ("w", T0 + 9_000_000_000, 77, 78, 1, 5, 5_000_000, 0, 0, 0, 0, 2, 4)
        db.execute(f"INSERT INTO events VALUES ({','.join('?' * 13)})", late)
        db.commit()
        assert (tmp_path / "in.db-wal").stat().st_size
        items = list(read(str(tmp_path / "in.db")))
    calls = {call.call: call for item in items if isinstance(item, Frame) and item.probes for call in item.probes.calls}
    assert calls["cudaStreamSynchronize"].count == 51


def test_a_trace_whose_log_cannot_be_read_is_refused_and_one_without_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "in.db")
    connect = sqlite3.connect

    def refuse(name: str, **more: Any) -> sqlite3.Connection:
        if "immutable" not in name:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(name, **more)

    monkeypatch.setattr(sqlite3, "connect", refuse)
    assert len(list(read(str(tmp_path / "in.db")))) > 10
    (tmp_path / "in.db-wal").write_bytes(b"newer rows")
    with pytest.raises(UserError, match="copy both"):
        list(read(str(tmp_path / "in.db")))


@pytest.mark.parametrize("aggregates", [True, False])
def test_calls_load_and_findings_are_taken_over(tmp_path: Path, aggregates: bool) -> None:
    make(tmp_path / "in.db", aggregates)
    assert cli.main(["import", str(tmp_path / "in.db")]) == 0
    with Recording(str(tmp_path / "in.gputop")) as recording:
        frames = list(recording.frames())
        board = recording.board_at(recording.end_ns)
        assert recording.header.host == "node3"
        assert recording.unix_ns_of(frames[0].t_ns) - T0 <= 200_000_000
        assert [mark.text for mark in recording.marks] == ["Ingero HIGH: sync\x1b[2J is slow; raise nice"]
    sync = board.calls[77, "cudaStreamSynchronize"]
    assert (sync.count, sync.total_ns) == (50, (50 * 1_000_000 + sum(range(50))) // 1000 * 1000)
    launches = board.calls.get((77, "cudaLaunchKernel"))
    assert (launches.count if launches else None) == (24000 if aggregates else None)
    assert board.infos[77].comm == "train.py"
    assert board.infos[77].env == {"RANK": "2", "WORLD_SIZE": "4"}
    assert board.infos[77].uses_cuda
    assert board.host["load1"] == 3.5
    assert board.host["tcp_retrans"] == 1
    assert board.gpus[0].missing["util_pct"]
    assert "util_pct" not in board.gpus[0].values
    assert not board.procs


def test_of_who_called_cuda_is_said_what_was_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "in.db")
    with closing(sqlite3.connect(tmp_path / "in.db")) as db:
        db.execute("UPDATE events SET pid = 99 WHERE id = '7'")  # nobody knows its name
        db.commit()
    cli.main(["import", str(tmp_path / "in.db")])
    capsys.readouterr()
    with Recording(str(tmp_path / "in.gputop")) as recording:
        session = Session()
        for item in (recording.header, *recording.frames()):
            session.ingest(item)
        assert {session.roles_at(session.board)[pid].kind for pid in (77, 99)} == {"trainer"}
        absent = {lane.title: lane.absent for lane in all_lanes(session, View())}
        assert "calls are counted" in absent["sync p99"]
        assert all("Ingero" in absent[title] for title in ("run-queue", "off-CPU", "ctx-switch", "PSI io", "GPU 0 PCIe rx"))
    assert cli.main(["explain", str(tmp_path / "in.gputop"), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["symptom"] is None
    assert "train.py rank 2 (77), pid 99 rank 2 (99) wait for was not measured" in verdict["headline"]


def test_host_load_is_what_was_measured(tmp_path: Path) -> None:
    make(tmp_path / "in.db")
    cli.main(["import", str(tmp_path / "in.db")])
    with Recording(str(tmp_path / "in.gputop")) as recording:
        hosts = [frame.host for frame in recording.frames() if frame.host and frame.host.cpus]
    (first,), (last,) = hosts[0].cpus or (), hosts[-1].cpus or ()
    busy, idle = last.user_ns - first.user_ns, last.idle_ns - first.idle_ns
    assert busy / (busy + idle) == pytest.approx(0.75)


def test_all_calls_are_told_those_of_the_first_tick_too(tmp_path: Path) -> None:
    make(tmp_path / "in.db")
    cli.main(["import", str(tmp_path / "in.db")])
    with Recording(str(tmp_path / "in.gputop")) as recording:
        _, rows = Database(recording).ask("SELECT sum(calls), round(sum(total_ms), 1) FROM sync")
        assert list(rows) == [(50, 50.0)]


@pytest.mark.parametrize("advice", [None, "drop", "raise nice", "[1]"])
def test_a_finding_without_a_list_of_recommendations_stands_alone(tmp_path: Path, advice: str | None) -> None:
    make(tmp_path / "in.db")
    with sqlite3.connect(tmp_path / "in.db") as db:
        if advice == "drop":
            db.execute("ALTER TABLE causal_chains DROP COLUMN recommendations")
        else:
            db.execute("UPDATE causal_chains SET recommendations = ?", (advice,))
    assert cli.main(["import", str(tmp_path / "in.db")]) == 0
    with Recording(str(tmp_path / "in.gputop")) as recording:
        assert [mark.text for mark in recording.marks] == ["Ingero HIGH: sync\x1b[2J is slow"]


@pytest.mark.parametrize("kind", ["missing", "text", "other", "empty"])
def test_what_is_no_trace_is_said_and_nothing_is_left(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.db"
    if kind == "text":
        path.write_text("hello")
    elif kind == "other":
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE events (a)")
    elif kind == "empty":
        make(path)
        with sqlite3.connect(path) as db:
            for table in ("events", "system_snapshots", "causal_chains", "event_aggregates"):
                db.execute(f"DELETE FROM {table}")
    assert cli.main(["import", str(path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "in.gputop").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_half_of_it(tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(path: str) -> Iterator[Header | Frame]:
        for i, item in enumerate(read(path)):
            yield item
            if i == 20:
                signal.raise_signal(number)

    make(tmp_path / "in.db")
    monkeypatch.setattr(ingero, "read", stopped)
    try:
        code: object = cli.main(["import", str(tmp_path / "in.db")])
    except SystemExit as ended:
        code = ended.code
    assert code == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["in.db"]


def test_kill_9_leaves_what_says_that_it_is_not_finished(tmp_path: Path) -> None:
    make(tmp_path / "in.db")
    code = f"""
import os
from gputop import cli
from gputop.recording import ingero
read = ingero.read
ingero.read = lambda path: (os.kill(os.getpid(), {int(signal.SIGKILL)}) if i == 20 else item for i, item in enumerate(read(path)))
cli.main(["import", "in.db"])
"""
    for left in ("in.gputop.unfinished", "in.gputop.unfinished-2"):
        assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == -signal.SIGKILL
        assert (tmp_path / left).exists()
    assert not (tmp_path / "in.gputop").exists()
    assert cli.main(["import", str(tmp_path / "in.db")]) == 0
    assert (tmp_path / "in.gputop").stat().st_mode & 0o777 == 0o600


INDEX = SYNC + bytes([KIND_INDEX])


@pytest.mark.parametrize("room_for", ["its beginning", "its frames"])
def test_a_full_disk_leaves_no_half_of_it(
    tmp_path: Path, room_for: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def few(path: str) -> Iterator[Header | Frame]:
        yield from islice(read(path), 4)

    def full(fd: int, data: bytes) -> None:
        if os.fstat(fd).st_size if room_for == "its beginning" else data.startswith(INDEX):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(fd, data)

    make(tmp_path / "in.db")
    monkeypatch.setattr(ingero, "read", few)
    monkeypatch.setattr(writer, "write_all", full)
    assert cli.main(["import", str(tmp_path / "in.db")]) == 1
    said = capsys.readouterr().err
    assert "No space left" in said or "is the disk full?" in said
    assert [path.name for path in tmp_path.iterdir()] == ["in.db"]


BAD_ROWS = {
    "a time before all": "UPDATE events SET timestamp = -5 WHERE id = '3'",
    "a time of 1970": "UPDATE events SET timestamp = 5 WHERE id = '3'",
    "a time to come": f"UPDATE events SET timestamp = {T0 + 10**18} WHERE id = '3'",
    "a time beyond all": f"UPDATE events SET timestamp = {2**63 - 1} WHERE id = '3'",
    "a time in words": "UPDATE events SET timestamp = 'noon' WHERE id = '3'",
    "a process in words": "UPDATE events SET pid = 'trainer' WHERE id = '3'",
    "a process that cannot be": f"UPDATE events SET pid = {2**62} WHERE id = '3'",
    "a duration in words": "UPDATE events SET duration = 'long' WHERE id = '3'",
    "a duration that cannot be": f"UPDATE events SET duration = {2**62} WHERE id = '3'",
    "a load that cannot be": "UPDATE system_snapshots SET cpu_pct = 1e308 WHERE timestamp = (SELECT max(timestamp) FROM system_snapshots)",
    "a load in words": "UPDATE system_snapshots SET load_avg = 'high' WHERE timestamp = (SELECT max(timestamp) FROM system_snapshots)",
    "a snapshot of 1970": "UPDATE system_snapshots SET timestamp = 1 WHERE timestamp = (SELECT max(timestamp) FROM system_snapshots)",
    "a finding of 1970": "UPDATE causal_chains SET detected_at = 1",
    "a minute in words": "UPDATE event_aggregates SET bucket = 'noon'",
    "no duration": "UPDATE events SET duration = NULL WHERE id = '3'",
    "no load": "UPDATE system_snapshots SET cpu_pct = NULL WHERE timestamp = (SELECT min(timestamp) FROM system_snapshots)",
    "no words": "UPDATE causal_chains SET summary = NULL",
}
BAD_FACTS = {
    "no name": "UPDATE process_names SET name = NULL",
    "CPUs in words": "UPDATE sessions SET cpu_cores = 'many', mem_total = 'much', node = 3",
}


@pytest.mark.parametrize("bad", [*BAD_ROWS, *BAD_FACTS])
def test_a_row_that_cannot_be_costs_itself_only_and_is_counted(tmp_path: Path, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "in.db")
    with closing(sqlite3.connect(tmp_path / "in.db")) as db:
        assert db.execute((BAD_ROWS | BAD_FACTS)[bad]).rowcount == 1
        db.commit()
    assert cli.main(["import", str(tmp_path / "in.db")]) == 0
    assert ("left out 1 row " in capsys.readouterr().err) == (bad in BAD_ROWS)
    with Recording(str(tmp_path / "in.gputop")) as recording:
        board = recording.board_at(recording.end_ns)
        assert not recording.problem
        assert recording.end_ns - recording.start_ns <= MINUTE
    assert board.calls[77, "cudaStreamSynchronize"].count in (49, 50)
    assert board.host["load1"] == 3.5


def test_an_operation_without_a_name_is_told_by_its_number(tmp_path: Path) -> None:
    make(tmp_path / "in.db")
    with closing(sqlite3.connect(tmp_path / "in.db")) as db:
        db.execute("UPDATE ops SET name = NULL WHERE source_id = 1 AND op_id = 5")
        db.commit()
    assert cli.main(["import", str(tmp_path / "in.db")]) == 0
    with Recording(str(tmp_path / "in.gputop")) as recording:
        assert recording.board_at(recording.end_ns).calls[77, "operation 5"].count == 50
        assert not recording.problem


@pytest.mark.parametrize("path", [".", "/", ""])
def test_a_folder_is_no_trace(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", path]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_fifo_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo.db")
    assert cli.main(["import", str(tmp_path / "fifo.db")]) == 1
    assert "no regular file" in capsys.readouterr().err


def test_a_recording_is_no_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["import", "in.db", "-o", "-"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())
