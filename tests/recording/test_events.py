"""The views `events` and `process_names`: as many rows as were counted, whose times are those that were counted."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import gputop
from gputop import cli
from gputop.model.frame import CudaCall, Frame, Probes, ProcInfo, ProcSample, SchedThread
from gputop.recording.reader import Recording
from gputop.tables.events import DIGITS, operation
from tests.recording.made import MS, SECOND, START_NS, record

MOST_SWITCHES = """SELECT pn.name as process, COUNT(*) as context_switches, SUM(duration_ns)/1e9 as total_off_cpu_sec,
  MAX(duration_ns)/1e6 as worst_stall_ms
FROM events e JOIN process_names pn ON e.pid = pn.pid
WHERE op = 'sched_switch' AND timestamp > (SELECT MAX(timestamp) - 120000000000 FROM events)
GROUP BY pn.name ORDER BY total_off_cpu_sec DESC LIMIT 10"""
WINDOWS = """SELECT (timestamp / 10000000000) * 10 as window_sec,
  COUNT(CASE WHEN op = 'sched_switch' THEN 1 END) as ctx_switches,
  COUNT(CASE WHEN op = 'cudaStreamSync' THEN 1 END) as sync_calls,
  AVG(CASE WHEN op = 'cudaStreamSync' THEN duration_ns END)/1000 as sync_avg_us
FROM events WHERE timestamp > (SELECT MAX(timestamp) - 120000000000 FROM events)
GROUP BY window_sec ORDER BY window_sec"""
"""Questions that a published article on another tracer asks of its table of events."""
SAMPLE = Path(gputop.__file__).parent / "data" / "sample.gputop"


def ask(path: Path, sql: str, *flags: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert cli.main(["query", str(path), sql, "--json", *flags]) == 0
    return list(json.loads(capsys.readouterr().out))


def of_tick(i: int) -> Frame:
    """Process 7 switches 3 times a tick in the first half and sleeps in the second, 8 switches 1,000 times in tick 5, 9 never; 7 waits for
    the GPU twice a tick."""
    t_ns = START_NS + i * 100 * MS
    procs = [
        ProcSample(7, 1, t_ns, "S", 0, 0, 0, 1, oncpu_ns=min(i, 20) * 40 * MS, run_delay_ns=0, vol=3 * min(i, 20), invol=0),
        ProcSample(8, 1, t_ns, "S", 0, 0, 0, 1, oncpu_ns=i * 10 * MS, run_delay_ns=0, vol=1000 * (i >= 5), invol=(i >= 5)),
        ProcSample(9, 1, t_ns, "S", 0, 0, 0, 1, oncpu_ns=0, run_delay_ns=0, vol=5, invol=0),
    ]
    calls = [CudaCall(7, "cuStreamSynchronize", 2 * i, i * 7 * MS, 5 * MS), CudaCall(7, "cuMemcpyHtoDAsync", 3 * i, i * MS, 0)]
    infos = [ProcInfo(pid, 1, comm=name) for pid, name in ((7, "train"), (8, "busy"), (9, "asleep"))] if not i else []
    return Frame(i, t_ns, key=i % 100 == 0, procs=procs, infos=infos, probes=Probes(t_ns, calls=calls))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    record(tmp_path / "events.gputop", map(of_tick, range(40)))
    return tmp_path / "events.gputop"


def test_the_published_questions_are_answered_by_count_and_sum(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["process"]: row for row in ask(path, MOST_SWITCHES, capsys=capsys)}
    assert rows.keys() == {"train", "busy"}
    assert (rows["train"]["context_switches"], rows["busy"]["context_switches"]) == (60, 1001)
    assert rows["train"]["total_off_cpu_sec"] == pytest.approx(3.9 - 0.8)
    assert rows["busy"]["total_off_cpu_sec"] == pytest.approx(3.9 - 0.39)
    windows = ask(path, WINDOWS, capsys=capsys)
    assert sum(row["ctx_switches"] for row in windows) == 1061
    assert sum(row["sync_calls"] for row in windows) == 78
    assert {round(row["sync_avg_us"]) for row in windows} == {3500}


def test_one_row_of_a_tick_has_the_longest_time_and_the_others_share_the_rest(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT timestamp, duration_ns FROM events WHERE op = 'cudaStreamSync'", capsys=capsys)
    ticks = defaultdict(list)
    for row in rows:
        ticks[row["timestamp"]].append(row["duration_ns"])
    assert len(ticks) == 39
    assert all(max(found) == pytest.approx(5 * MS, rel=0.04) and sum(found) == 7 * MS for found in ticks.values())
    # An equal share of 0.79 s is longer than any wait for a CPU that is known.
    [busy] = ask(path, "SELECT min(duration_ns) a, max(duration_ns) b, count(*) n FROM events WHERE pid = 8", capsys=capsys)
    assert busy["n"] == 1001
    assert busy["b"] - busy["a"] <= 1000


def test_time_off_a_cpu_belongs_to_the_switch_that_began_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT max(timestamp) t, sum(duration_ns) ns FROM events WHERE pid = 7 AND op = 'sched_switch' GROUP BY timestamp ORDER BY 1"
    rows = ask(path, sql, capsys=capsys)
    assert [row["ns"] for row in rows] == [60 * MS] * 19 + [60 * MS + 19 * 100 * MS]
    assert rows[-1]["t"] == START_NS + 20 * 100 * MS


def test_durations_are_whole_nanoseconds(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(path, "SELECT DISTINCT typeof(timestamp) a, typeof(duration_ns) b, typeof(op) c FROM events", capsys=capsys)
    assert rows == [{"a": "integer", "b": "integer", "c": "text"}]


def test_a_process_whose_cpu_time_is_not_known_has_switches_without_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    procs = [ProcSample(7, 1, START_NS + i * 100 * MS, "S", 0, 0, 0, 1, vol=i, invol=0) for i in range(10)]
    frames = [Frame(i, proc.t_ns, key=not i, procs=[proc]) for i, proc in enumerate(procs)]
    record(tmp_path / "blind.gputop", frames)
    assert ask(tmp_path / "blind.gputop", "SELECT count(*) n, count(duration_ns) told FROM events", capsys=capsys) == [{"n": 9, "told": 0}]


@pytest.mark.parametrize("count", [1, 2, DIGITS - 1, DIGITS, DIGITS + 1, 3 * DIGITS + 5, 1_000_003])
def test_any_number_of_events_in_a_tick(tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    total = 987_654_321_000
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i, probes=Probes(START_NS + i * 100 * MS, calls=[
        CudaCall(7, "cuCtxSynchronize", i * count, i * total, 0)])) for i in range(2)]  # fmt: skip
    record(tmp_path / "many.gputop", frames)
    [row] = ask(tmp_path / "many.gputop", "SELECT count(*) n, sum(duration_ns) ns FROM events WHERE op = 'cudaDeviceSync'", capsys=capsys)
    assert row == {"n": count, "ns": total}


def test_all_threads_of_a_process_count_where_the_probe_knows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two threads; the longest wait for a CPU, 30 ms, is that of one of them."""
    frames = []
    for i in range(60):
        t_ns = START_NS + i * 100 * MS
        told = i * 50 * MS, i * 30 * MS, 0, i * 20 * MS, 0, 4 * i, i, 30 * MS
        threads = [SchedThread(tid, 7, *told, start_ns=START_NS) for tid in (7, 70)]
        procs = [ProcSample(7, 1, t_ns, "S", 0, 0, 0, 2, oncpu_ns=i * 50 * MS, run_delay_ns=0, vol=4 * i, invol=i)]
        frames.append(Frame(i, t_ns, key=not i, procs=procs, probes=Probes(t_ns, threads)))
    record(tmp_path / "threads.gputop", frames)
    [row] = ask(tmp_path / "threads.gputop", "SELECT count(*) n, sum(duration_ns) ns, max(duration_ns) longest FROM events", capsys=capsys)
    assert row == {"n": 2 * 59 * 5, "ns": 2 * 59 * 50 * MS, "longest": pytest.approx(30 * MS, rel=0.04)}


def test_a_thread_that_the_probe_sees_late_brings_no_time_from_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its waits for a CPU are the scheduler's sum since its birth."""
    frames = []
    for i in range(60):
        t_ns = START_NS + i * 100 * MS
        told = 900 * SECOND, 500 * SECOND + i * MS, 0, max(0, i - 12) * 90 * MS, 0, max(0, i - 12), 0, 0
        threads = [SchedThread(7, 7, *told, start_ns=START_NS + 1200 * MS)] if i > 12 else []
        frames.append(Frame(i, t_ns, key=not i, procs=[ProcSample(7, 1, t_ns, "S", 0, 0, 0, 1)], probes=Probes(t_ns, threads)))
    record(tmp_path / "late.gputop", frames)
    [row] = ask(tmp_path / "late.gputop", "SELECT count(*) n, sum(duration_ns) ns FROM events", capsys=capsys)
    assert row == {"n": 47, "ns": pytest.approx(47 * 91 * MS, rel=0.01)}


@pytest.mark.parametrize("flags", [[], ["--from", "6", "--until", "13"]])
def test_a_real_recording_with_probes_gives_what_its_counters_say(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    switches = "SELECT pid, count(*) n, sum(duration_ns) ns FROM events WHERE op = 'sched_switch' GROUP BY 1"
    found = ask(SAMPLE, switches, *flags, capsys=capsys)
    sums = """SELECT pid, sum(coalesce(thread_switches, switches)) n, round(1e9 * sum(coalesce(thread_offcpu_s, offcpu_s))) ns FROM proc
      WHERE coalesce(thread_switches, switches) IS NOT NULL GROUP BY pid HAVING n > 0"""
    rows = ask(SAMPLE, sums, *flags, capsys=capsys)
    assert len(rows) > 3
    assert found == [{**row, "ns": pytest.approx(row["ns"], abs=1000)} for row in rows]
    for table in ("sync", "copy"):
        sums = f"SELECT total(calls) n, round(1e6 * total(total_ms)) ns, total(max_ms) > 0 told, max(max_ms) ms FROM {table}"
        [row] = ask(SAMPLE, sums, *flags, capsys=capsys)
        ops = "('cudaStreamSync', 'cudaDeviceSync', 'cudaEventSync')"
        where = f"op {'IN' if table == 'sync' else 'NOT IN'} {ops} AND op <> 'sched_switch'"
        [events] = ask(SAMPLE, f"SELECT count(*) n, total(duration_ns) ns, max(duration_ns) longest FROM events WHERE {where}", *flags,
                       capsys=capsys)  # fmt: skip
        assert (events["n"], events["ns"]) == (row["n"], pytest.approx(row["ns"], abs=1000))
        assert not row["told"] or events["longest"] == pytest.approx(1e6 * row["ms"], rel=0.04)


def test_switches_of_the_sample_are_those_of_its_threads(capsys: pytest.CaptureFixture[str]) -> None:
    """Worked out from the frames of the trainer, which the probe reports whenever it has changed."""
    with Recording(str(SAMPLE)) as recording:
        frames = list(recording.frames())
    [trainer] = {pid for gpu in frames[0].gpus for pid in [proc.pid for proc in gpu.procs or ()]}
    first: dict[int, SchedThread] = {}
    last: dict[int, SchedThread] = {}
    for frame in frames:
        for thread in frame.probes.threads if frame.probes else ():
            if thread.pid == trainer:
                first.setdefault(thread.tid, thread)
                last[thread.tid] = thread
    begun = frames[0].t_ns
    grown = sum(t.vol + t.invol - (0 if first[tid].start_ns >= begun else first[tid].vol + first[tid].invol) for tid, t in last.items())
    [row] = ask(SAMPLE, f"SELECT count(*) n FROM events WHERE op = 'sched_switch' AND pid = {trainer}", capsys=capsys)
    assert row["n"] == pytest.approx(grown, rel=0.02)  # before the probe's second report its main thread counts


@pytest.mark.parametrize(("call", "op"), [
    ("cuStreamSynchronize", "cudaStreamSync"), ("cuCtxSynchronize", "cudaDeviceSync"), ("cuEventSynchronize", "cudaEventSync"),
    ("cudaStreamSynchronize", "cudaStreamSync"), ("cudaDeviceSynchronize", "cudaDeviceSync"), ("cuMemcpyHtoDAsync", "cudaMemcpyAsync"),
    ("cuMemcpyDtoH", "cudaMemcpy"), ("cuMemcpyPeerAsync", "cudaMemcpyPeerAsync"), ("cuMemcpy2D", "cudaMemcpy2D"),
    ("cuMemcpy", "cudaMemcpy"), ("cudaMemcpyAsync", "cudaMemcpyAsync"), ("cudnnForward", "cudnnForward"), ("read", "read"),
])  # fmt: skip
def test_calls_have_the_names_of_the_runtime(call: str, op: str) -> None:
    assert operation(call) == op


@pytest.mark.parametrize("sql", [MOST_SWITCHES, WINDOWS, "SELECT count(*) n, sum(duration_ns) ns FROM events"])
def test_an_sqlite_export_answers_as_the_recording_does(path: Path, tmp_path: Path, sql: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(path), "--to", "sqlite", "-o", str(tmp_path / "out.sqlite")]) == 0
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as database:
        database.row_factory = sqlite3.Row
        assert list(map(dict, database.execute(sql))) == ask(path, sql, capsys=capsys)


def test_a_reused_pid_is_one_process_by_its_latest_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = [of_tick(i) for i in range(20)]
    frames[10].infos = [ProcInfo(7, 99, comm="later")]
    record(tmp_path / "reused.gputop", frames)
    rows = ask(tmp_path / "reused.gputop", "SELECT name, count(*) n FROM process_names GROUP BY pid HAVING pid = 7", capsys=capsys)
    assert rows == [{"name": "later", "n": 1}]


def test_the_last_seconds_alone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [row] = ask(path, "SELECT count(*) n, min(t_s) first FROM events WHERE op = 'cudaStreamSync'", "--last", "1", capsys=capsys)
    assert (row["n"], row["first"]) == (20, pytest.approx(3.0, abs=0.11))
