"""SQL over recordings: numbers as worked out by hand from the frames, and nothing but reading."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gputop import cli
from gputop.commands.query import WHO_SWITCHED, WHO_TOOK, WINDOWS
from gputop.model.frame import CudaCall, Frame, Gpu, Mark, Preempt, Probes, ProcSample, SchedThread
from gputop.recording.columns import UNITS
from gputop.recording.format import HEAD, KIND_FRAMES, pack, pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.recording.scan import places
from gputop.tables import load
from gputop.tables.events import VIEWS
from gputop.tables.load import TableLoader
from gputop.tables.schema import TABLES
from tests.recording.made import HEADER, MS, SECOND, START_NS, Session, record
from tests.wait import PATIENCE_S


def ask(path: str, sql: str, *flags: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert cli.main(["query", path, sql, "--json", *flags]) == 0
    return list(json.loads(capsys.readouterr().out))


def growth(values: list[int]) -> int:
    return values[-1] - values[0]


def test_who_switched_most(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    path, frames = session
    rows = ask(path, WHO_SWITCHED, capsys=capsys)
    assert [row["switches"] for row in rows] == sorted((row["switches"] for row in rows), reverse=True)
    for row in rows:
        samples = [proc for frame in frames for proc in frame.procs if proc.pid == row["pid"]]
        switches = [(proc.vol or 0) + (proc.invol or 0) for proc in samples]
        threads = [thread for frame in frames if frame.probes for thread in frame.probes.threads if thread.pid == row["pid"]]
        asleep = growth([t.runnable_ns + t.sleeping_ns + t.uninterruptible_ns for t in threads]) if threads else None
        offcpu = asleep or growth([proc.t_ns for proc in samples]) - growth([proc.oncpu_ns or 0 for proc in samples])
        waits = [thread.max_run_delay_ns for thread in threads]
        assert row["switches"] == growth(switches)
        # No tick counts as less than nothing, though times are kept in other steps than CPU time.
        assert row["offcpu_s"] == pytest.approx(offcpu / SECOND, abs=UNITS["oncpu_ns"] / SECOND * len(samples))
        assert row["worst_stall_ms"] == (pytest.approx(max(waits) / MS) if waits else None)


def test_switches_and_synchronize_calls_in_windows(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    path, frames = session
    rows = ask(path, WINDOWS, capsys=capsys)
    assert [row["t_s"] for row in rows] == [0, 10, 20]
    start = frames[0].t_ns
    calls = {(call.pid, call.call): [] for frame in frames if frame.probes for call in frame.probes.calls}
    for frame in frames:
        for call in frame.probes.calls if frame.probes else ():
            calls[call.pid, call.call].append((frame.t_ns, call.count, call.total_ns))
    count = total = 0
    for (_, name), seen in calls.items():
        for before, now in itertools.pairwise(seen):
            if "Synchronize" in name and 10 <= (now[0] - start) / SECOND < 20:
                count, total = count + now[1] - before[1], total + now[2] - before[2]
    assert rows[1]["calls"] == count
    assert rows[1]["mean_ms"] == pytest.approx(total / count / MS)
    samples: dict[int, ProcSample] = {}
    switches = 0
    for frame in frames:
        for proc in frame.procs:
            before_ = samples.get(proc.pid)
            if before_ and 10 <= (frame.t_ns - start) / SECOND < 20:
                switches += (proc.vol or 0) + (proc.invol or 0) - (before_.vol or 0) - (before_.invol or 0)
            samples[proc.pid] = proc
    assert rows[1]["switches"] == switches


@pytest.mark.parametrize("first", ["sync", "copy"])
def test_tables_made_of_the_same_rows_lose_nothing_beside_each_other(
    session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str], first: str
) -> None:
    [alone] = ask(session[0], f"SELECT sum(calls) calls, sum(total_ms) ms FROM {first}", capsys=capsys)
    for both in (("sync", "copy"), ("copy", "sync")):
        rows = " UNION ALL ".join(f"SELECT '{name}' name, calls, total_ms FROM {name}" for name in both)
        beside = ask(session[0], f"SELECT sum(calls) calls, sum(total_ms) ms FROM ({rows}) WHERE name = '{first}'", capsys=capsys)
        assert beside == [alone]


def test_who_took_most_from_the_trainer(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    path, frames = session
    rows = ask(path, WHO_TOOK, capsys=capsys)
    seen = [(p.victim_tid, p.ns) for frame in frames if frame.probes for p in frame.probes.preempts if p.victim_tid in (3000, 3007)]
    lost = sum(growth([ns for victim, ns in seen if victim == tid]) for tid in {victim for victim, _ in seen})
    assert [row["pid"] for row in rows] == [812]
    assert rows[0]["cpu_s"] == pytest.approx(lost / SECOND)


def test_every_table_and_column_can_be_read(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    path, frames = session
    counted = {name: ask(path, f"SELECT * FROM {name}", capsys=capsys) for name in TABLES}
    for name, rows in counted.items():
        assert all(list(row) == [column.name for column in TABLES[name].columns] for row in rows)
    assert len(counted["gpu"]) == 2 * len(frames)
    assert len(counted["proc"]) == sum(len(frame.procs) for frame in frames)
    assert {row["pid"] for row in counted["process"]} == {proc.pid for proc in frames[0].procs}
    assert {row["role"] for row in counted["process"]} >= {"trainer"}
    assert [row["text"] for row in counted["mark"]] == ["epoch 0"]
    assert counted["incident"]
    assert not counted["gap"]


def test_one_row_per_gpu_and_tick_whatever_tier_it_was_read_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gputop.model.frame import Gpu

    frames = [Frame(i, START_NS + i * 100 * MS, key=not i, gpus=[Gpu(0, START_NS, util_pct=50.0 + i), Gpu(0, START_NS, temp_c=40.0)])
              for i in range(3)]  # fmt: skip
    path = tmp_path / "tiers.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    rows = ask(str(path), "SELECT util_pct, temp_c FROM gpu", capsys=capsys)
    assert rows == [{"util_pct": 50.0 + i, "temp_c": 40.0} for i in range(3)]


def counter(start: int, step: int, n: int, **other: Any) -> list[ProcSample]:
    return [ProcSample(7, start, START_NS + i * 100 * MS, "R", i * step, 0, 0, 1, vol=i, **other) for i in range(n)]


def test_a_reused_pid_and_a_skipped_beat_are_no_increments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = [*counter(1, 10 * MS, 5), *counter(2, 10 * MS, 5)]
    frames = [Frame(i + 3 * (i > 6), START_NS + (i + 3 * (i > 6)) * 100 * MS, key=not i, missed=3 * (i == 7), procs=[proc])
              for i, proc in enumerate(samples)]  # fmt: skip
    path = tmp_path / "odd.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    rows = ask(str(path), "SELECT vol, cpu_s FROM proc", capsys=capsys)
    assert all(row["vol"] in (None, 1) for row in rows)
    assert sum(row["vol"] is None for row in rows) == 2
    gaps = ask(str(path), "SELECT dt_s, missed, reason FROM gap", capsys=capsys)
    assert [(round(gap["dt_s"], 3), gap["missed"]) for gap in gaps] == [(0.4, 3)]


def test_a_pipe_gets_texts_whole_and_a_terminal_their_beginning(
    session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "SELECT pid, 'x' || printf('%0*d', 200, pid) long FROM process LIMIT 2"
    assert cli.main(["query", session[0], sql]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["pid", "long"]
    assert all(len(row.split()[1]) == 201 for row in rows)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["query", session[0], sql]) == 0
    assert all(row.endswith("…") and len(row) < 100 for row in capsys.readouterr().out.splitlines()[1:])


def test_a_process_that_was_born_meanwhile_is_counted_from_its_birth_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of decoders and compilers that live for half a second most is in the first reading."""
    born = START_NS // (10 * MS)
    frames = []
    for i in range(30):
        t_ns = START_NS + i * 100 * MS
        procs = [ProcSample(7, 1, t_ns, "R", (90 + i) * 10 * MS, 0, 0, 1, vol=500 + i)]
        if i in (13, 14, 15):
            procs.append(ProcSample(8, born + 120, t_ns, "R", (i - 12) * 100 * MS, 0, 0, 1, vol=i - 10))
        frames.append(Frame(i, t_ns, key=i % 20 == 0, procs=procs))
    path = tmp_path / "born.gputop"
    record(path, frames)
    sums = "pid, sum(cpu_s) cpu_s, sum(vol) vol, sum(dt_s) dt_s"
    rows = ask(str(path), f"SELECT {sums} FROM proc GROUP BY pid ORDER BY pid", capsys=capsys)
    told = [(row["pid"], round(row["cpu_s"], 6), row["vol"], round(row["dt_s"], 6)) for row in rows]
    assert told == [(7, 0.29, 29, 2.9), (8, 0.3, 5, 0.3)]


def test_who_is_born_in_the_first_second_is_counted_from_his_birth_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the command is that `record` runs: only who was there in the first frame had begun before."""
    frames = []
    for i in range(8):
        t_ns, calls = START_NS + i * 100 * MS, [CudaCall(7, "cuStreamSynchronize", 40 + i, 0, 0)]
        procs = [ProcSample(7, 1, t_ns, "R", (90 + i) * 10 * MS, 0, 0, 1, vol=500 + i)]
        if i >= 2:
            procs.append(ProcSample(8, START_NS // (10 * MS) + 11, t_ns, "R", (i + 3) * 10 * MS, 0, 0, 1, vol=i))
            procs.append(ProcSample(9, START_NS // (10 * MS) - 1, t_ns, "R", (i + 3) * 10 * MS, 0, 0, 1, vol=i))
            calls.append(CudaCall(8, "cuStreamSynchronize", i, 0, 0))
        frames.append(Frame(i, t_ns, key=not i, procs=procs, probes=Probes(t_ns, calls=calls)))
    record(tmp_path / "first.gputop", frames)
    rows = ask(str(tmp_path / "first.gputop"), "SELECT pid, sum(cpu_s) s, sum(vol) vol, sum(dt_s) dt FROM proc GROUP BY 1", capsys=capsys)
    assert [(row["pid"], round(row["s"], 6), row["vol"], round(row["dt"], 6)) for row in rows] == [
        (7, 0.07, 7, 0.7), (8, 0.1, 7, 0.59), (9, 0.05, 5, 0.5)]  # fmt: skip
    rows = ask(str(tmp_path / "first.gputop"), "SELECT pid, sum(calls) n FROM sync GROUP BY 1", capsys=capsys)
    assert [(row["pid"], row["n"]) for row in rows] == [(7, 7), (8, 7)]


def test_a_pair_that_a_key_frame_leaves_out_begins_at_nothing_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was forgotten, and has met more often since than before."""
    frames = [Frame(i, START_NS + i * 100 * MS, key=i % 10 == 0) for i in range(20)]
    for frame in frames:
        times = {1: frame.seq, 8: {1: 3, 2: 5, 14: 9, 15: 11}.get(frame.seq, 0)}
        frame.probes = Probes(frame.t_ns, preempts=[Preempt(7, by, by, met * MS, met) for by, met in times.items() if met or by == 1])
    record(tmp_path / "met.gputop", frames)
    rows = ask(str(tmp_path / "met.gputop"), "SELECT sum(times) n FROM preempt WHERE culprit_pid = 8", capsys=capsys)
    assert rows == [{"n": 5 + 11}]


@pytest.mark.parametrize("spelt", ["GPU", "Gpu", '"gPU"'])
def test_a_table_is_found_however_it_is_spelt(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str], spelt: str) -> None:
    (here,) = ask(session[0], "SELECT count(*) n FROM gpu", capsys=capsys)
    assert here["n"] > 0
    assert ask(session[0], f"SELECT count(*) n FROM {spelt}", capsys=capsys) == [here]


def test_from_a_marker_to_the_next_the_first_is_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording keeps times to 10 µs, a marker's too, whatever the index that stands at its end says."""
    marks = {7: "A", 19: "B"}
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i,
                    marks=[Mark(START_NS + i * 100 * MS - 4_321, marks[i])] if i in marks else []) for i in range(40)]  # fmt: skip
    record(tmp_path / "whole.gputop", frames)
    data = (tmp_path / "whole.gputop").read_bytes()
    (tmp_path / "cut.gputop").write_bytes(data[:-200])
    for name in ("whole", "cut"):
        for flags, found in ((["--from", "A", "--until", "B"], ["A"]), (["--from", "A"], ["A", "B"]), (["--until", "B"], ["A"])):
            rows = ask(str(tmp_path / f"{name}.gputop"), "SELECT text FROM mark", *flags, capsys=capsys)
            assert [row["text"] for row in rows] == found, (name, flags)


@pytest.mark.parametrize("until", ["100%", "3.9", "end"])
def test_until_the_time_of_the_last_tick_is_to_the_end(tmp_path: Path, until: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "a.gputop")
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i, gpus=[Gpu(0, START_NS + i * 100 * MS)]) for i in range(40)]
    frames[-1].marks = [Mark(frames[-1].t_ns, "end")]
    record(Path(path), frames)
    for flags, count in (([], 40), (["--from", "end"], 1), (["--last", "1"], 10)):
        (row,) = ask(path, "SELECT count(*) n FROM gpu", *flags, "--until", until, capsys=capsys)
        assert row["n"] == count, flags


def test_a_pair_that_was_forgotten_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stood = [(40, 4), (70, 7), (70, 7), (6, 1), (9, 2)]
    frames = [Frame(i, START_NS + i * SECOND, key=not i, probes=Probes(START_NS + i * SECOND, preempts=[Preempt(7, 9, 9, ns * MS, n)]))
              for i, (ns, n) in enumerate(stood)]  # fmt: skip
    path = tmp_path / "pairs.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    rows = ask(str(path), "SELECT lost_s, times FROM preempt", capsys=capsys)
    assert [row["times"] for row in rows] == [None, 3, 0, 1, 1]
    assert [row["lost_s"] for row in rows[1:]] == pytest.approx([0.03, 0, 0.006, 0.003])


@pytest.mark.parametrize(
    ("join", "plain"),
    [
        ("proc JOIN gpu USING (t_ns)", "proc JOIN gpu ON proc.t_ns = gpu.t_ns"),
        ('proc p JOIN process s Using /* who */ ("PID")', "proc p JOIN process s ON p.pid = s.pid"),
        ("mark NATURAL JOIN mark later", "mark"),
        ("proc NATURAL JOIN (SELECT 3000 pid)", "proc WHERE pid = 3000"),
    ],
)
def test_joins_by_columns_of_one_name(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str], join: str, plain: str) -> None:
    answers = [ask(session[0], f"SELECT count(*) n FROM {tables}", capsys=capsys) for tables in (join, plain)]
    assert answers[0] == answers[1]
    assert answers[0][0]["n"] > 0


def test_all_columns_of_a_join_by_name(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(session[0], "SELECT * FROM sync JOIN process USING (pid) LIMIT 1", capsys=capsys)
    assert [(row["pid"], row["ppid"] >= 0) for row in rows] == [(rows[0]["pid"], True)]


def test_a_stretch_of_time(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    path, frames = session
    (row,) = ask(path, "SELECT min(t_ns) a, max(t_ns) b, count(*) n FROM gpu", "--from", "5", "--until", "6", capsys=capsys)
    inside = [frame.t_ns for frame in frames if 5 * SECOND <= frame.t_ns - frames[0].t_ns < 6 * SECOND]
    assert (row["a"], row["b"], row["n"]) == (inside[0], inside[-1], 2 * len(inside))
    (row,) = ask(path, "SELECT count(*) n FROM gpu", "--last", "2.5", capsys=capsys)
    assert 48 <= row["n"] <= 52


def of_day(seconds: float) -> str:
    """The clock so long after the session's beginning."""
    return time.strftime("%H:%M:%S", time.localtime(HEADER.unix_ns / SECOND + seconds))


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        (["--from", of_day(-9), "--until", of_day(5)], (0, 4.9)),
        (["--from", of_day(-40_000)], (0, 24.9)),
        (["--from", of_day(5), "--until", of_day(3600)], (5, 24.9)),
        (["--until", of_day(40_000)], (0, 24.9)),
        (["--from", of_day(-9), "--until", of_day(-4)], None),
        (["--from", of_day(60)], None),
    ],
)
def test_clock_times_beside_the_recording_are_those_nearest_to_it(
    session: tuple[str, list[Frame]], flags: list[str], seen: tuple[float, float] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["query", session[0], "SELECT min(t_s), max(t_s) FROM gpu", "--csv", *flags])
    out, err = capsys.readouterr()
    if seen is None:
        assert (code, "nothing was recorded" in err) == (2, True)
    else:
        assert [float(value) for value in out.splitlines()[1].split(",")] == pytest.approx(seen, abs=0.2)


def test_a_stretch_between_markers_that_come_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {1: "epoch 3", 3: "epoch 4", 6: "epoch 3", 8: "epoch 4"}
    frames = [
        Frame(i, t_ns, key=not i, marks=[Mark(t_ns, texts[i])] if i in texts else [])
        for i, t_ns in ((i, START_NS + i * 100 * MS) for i in range(10))
    ]
    path = tmp_path / "marks.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    for first, last, times in (("epoch 4", "epoch 3", [0.3]), ("epoch 3", "epoch 4", [0.1]), ("epoch 3", "epoch 3", [0.1, 0.3])):
        rows = ask(str(path), "SELECT t_s FROM mark", "--from", first, "--until", last, capsys=capsys)
        assert [round(row["t_s"], 3) for row in rows] == times
    assert cli.main(["query", str(path), "SELECT t_s FROM mark", "--from", "0.9", "--until", "epoch 4"]) == 2


@pytest.mark.parametrize("sql", [
    "DROP TABLE gpu", "INSERT INTO gpu(gpu) VALUES (1)", "UPDATE gpu SET gpu = 1", "DELETE FROM gpu", "ATTACH '/tmp/x' AS y",
    "CREATE TABLE a(b)", "PRAGMA page_count", "SELECT load_extension('x')", "SELECT 1; DROP TABLE gpu", "VACUUM INTO '/tmp/x'", "BEGIN",
    "SELECT nothing FROM gpu", "", "SELEC", "SELECT ?", "WITH a AS (SELECT 1) INSERT INTO gpu SELECT * FROM a", "DETACH main",
    ".import x y", "SELECT '\0'", "REINDEX", "SELECT * FROM pragma_database_list", "SELECT * FROM dbstat", "DELETE FROM json_each",
])  # fmt: skip
def test_what_is_no_reading_is_refused_in_a_line(session: tuple[str, list[Frame]], sql: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(session[0]).read_bytes()
    code = cli.main(["query", session[0], sql])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") or sql == "SELECT '\0'"
    assert err.count("\n") == (1 if code else 0)
    assert Path(session[0]).read_bytes() == before


def test_schema_documents_every_column(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", session[0], ".schema"]) == 0
    text = capsys.readouterr().out
    sqlite3.connect(":memory:").executescript(text)
    for spec in TABLES.values():
        for column in spec.columns:
            assert column.help in text
    for word in ("gpu", "proc", "sync", "preempt", "wakeup", "process", "incident", "stack", "gap"):
        assert f"CREATE TABLE {word} " in text


def test_the_page_about_tables_names_all_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    assert [name for name in (*TABLES, *VIEWS) if f"`{name}`" not in page] == []


def test_an_endless_statement_is_stopped_by_ctrl_c(session: tuple[str, list[Frame]]) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    script = ("import os, sys, threading; from gputop import cli; threading.Timer(1, os.kill, (os.getpid(), 2)).start(); "
              "sys.exit(cli.main(sys.argv[1:]))")  # fmt: skip
    argv = [sys.executable, "-c", script, "query", session[0], endless]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_frames_that_are_read_in_part_say_what_whole_ones_do(session: tuple[str, list[Frame]], monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> dict[str, list[Any]]:
        with Recording(session[0]) as recording:
            judged = ("incident", "ledger", "member")
            wanted = {name: [column.name for column in spec.columns] for name, spec in TABLES.items() if name not in judged}
            return {name: [row for _, found in TableLoader(recording, {name: columns}).batches() for row in found]
                    for name, columns in wanted.items()}  # fmt: skip

    in_part = rows()
    monkeypatch.setattr(load, "read_frames", lambda recording, *_: recording.frames())
    assert in_part == rows()
    assert sum(map(bool, in_part.values())) > 10


def test_a_made_up_block_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made_up.gputop"
    record(path, Session(1, 4).frames(40))
    good, rng = path.read_bytes(), random.Random(4)
    with open(path, "rb") as file:
        blocks = [place for place in places(file.fileno(), 8, len(good)) if place.head.kind == KIND_FRAMES]
    sql = "SELECT (SELECT count(*) FROM gpu) + (SELECT count(*) FROM proc) + (SELECT count(*) FROM wakeup) n"
    [whole] = ask(str(path), sql, capsys=capsys)
    for place in rng.choices(blocks, k=60):
        payload = bytearray(good[place.offset + HEAD.size : place.end])
        payload[rng.randrange(len(payload))] = rng.choice((0, 0xCF, 0xDF, 0xFF, rng.randrange(256)))
        block = pack(place.head.kind, bytes(payload), tier=place.head.tier, flags=place.head.flags, t_ns=place.head.t_ns)
        path.write_bytes(good[: place.offset] + block + good[place.end :])
        assert cli.main(["query", str(path), sql, "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out) == [whole] or "left out" in said.err


def test_a_mark_has_the_time_at_which_it_was_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i) for i in range(10)]
    frames[7].marks = [Mark(START_NS + 310 * MS, "epoch 3")]
    path = tmp_path / "marked.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    assert ask(str(path), "SELECT t_ns, t_s FROM mark", capsys=capsys) == [{"t_ns": START_NS + 310 * MS, "t_s": 0.31}]
    for flags in (["--from", "0.3", "--until", "0.75"], ["--from", "epoch 3"]):
        assert len(ask(str(path), "SELECT text FROM mark", *flags, capsys=capsys)) == 1
    assert ask(str(path), "SELECT text FROM mark", "--from", "0.5", capsys=capsys) == []


def test_the_waits_of_who_is_told_of_and_read_in_different_ticks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = [Frame(i, START_NS + i * 100 * MS, key=i in (0, 20)) for i in range(40)]
    read = [ProcSample(7, 1, frame.t_ns, "R", 0, 0, 0, 1) for frame in frames]
    for i, frame in enumerate(frames):
        frame.procs = [read[i]] if i % 10 == 3 else [read[13]] if i == 20 else []
        told = [SchedThread(tid, 7, 0, 0, 0, 0, 0, 0, 0, (i + tid) * MS) for tid in (7, 8)]
        frame.probes = Probes(frame.t_ns, told if i % 10 == 8 else [])
    path = tmp_path / "waits.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames(frames[i : i + 10]) for i in range(0, 40, 10)))
    rows = ask(str(path), "SELECT t_s, stall_ms FROM proc ORDER BY t_s", capsys=capsys)
    assert [row["stall_ms"] for row in rows] == [None, *(pytest.approx(ms, rel=0.02) for ms in (16, 26, 46))]


def test_the_switches_of_all_threads_are_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The main thread's alone where no probe tells of the process."""
    frames = [Frame(i, START_NS + i * 100 * MS, key=i in (0, 20)) for i in range(40)]
    for i, frame in enumerate(frames):
        frame.procs = [ProcSample(pid, 1, frame.t_ns, "R", 0, 0, 0, 1, vol=i, invol=2 * i) for pid in (7, 9) if i % 10 == 3]
        told = [SchedThread(tid, 7, 0, 0, 0, 0, 0, tid * i, i, 0) for tid in (7, 8)]
        frame.probes = Probes(frame.t_ns, told if i % 10 == 8 and i < 30 else [])
    path = tmp_path / "switches.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames(frames[i : i + 10]) for i in range(0, 40, 10)))
    rows = ask(str(path), "SELECT pid, switches, thread_switches FROM proc ORDER BY pid, t_s", capsys=capsys)
    assert [row["thread_switches"] for row in rows] == [None, 85, 170, 85, None, None, None, None]
    best = {row["pid"]: row["switches"] for row in ask(str(path), WHO_SWITCHED, capsys=capsys)}
    assert best == {7: 340, 9: 90}


def test_columns_of_one_name_are_told_apart_in_json(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(session[0], "SELECT 1 a, 2 a, 3 a_2, 4 a", capsys=capsys) == [{"a": 1, "a_2": 2, "a_2_2": 3, "a_3": 4}]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3 has no setlimit")
def test_no_value_grows_without_bounds(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", session[0], "SELECT length(hex(zeroblob(300000000)))"]) == 2
    assert capsys.readouterr().err == "gputop: SQL: string or blob too big\n"


def test_the_schema_of_one_table(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", session[0], ".schema gpu"]) == 0
    assert capsys.readouterr().out.count("CREATE TABLE") == 1
    assert cli.main(["query", session[0], ".schema gpus"]) == 2
    assert "there is no table gpus: there are gpu, proc" in capsys.readouterr().err


def test_the_names_of_the_tables(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", session[0], ".tables"]) == 0
    assert capsys.readouterr().out.split() == [*TABLES, *VIEWS]


@pytest.mark.parametrize(("sql", "told"), [("", "nothing is no question"), (".gpu", ".gpu is no question"), (" ; ", "nothing is")])
def test_what_is_no_question_is_told_what_there_is(
    sql: str, told: str, session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["query", session[0], sql]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert ".tables, .schema" in err


@pytest.mark.parametrize(("sql", "helps"), [("SELECT 1 FROM gpus", True), ("SELECT gpus FROM gpu", True), ("SELECT gpus(1)", False)])
def test_who_asks_for_what_there_is_not_is_told_where_to_look(
    sql: str, helps: bool, session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["query", session[0], sql]) == 2
    assert ("gpus (.tables and .schema list them)" in capsys.readouterr().err) == helps


def test_no_moment_before_the_beginning(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", session[0], "SELECT 1", "--from=-5"]) == 2
    assert "'-5' is no time" in capsys.readouterr().err


def test_json_columns_can_be_read_value_by_value(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    each = "SELECT count(*) n FROM incident, json_each(evidence)"
    [row] = ask(session[0], each, capsys=capsys)
    told = ask(session[0], "SELECT evidence FROM incident", capsys=capsys)
    assert row["n"] == sum(len(json.loads(incident["evidence"])) for incident in told) > 0
    assert ask(session[0], "SELECT value FROM json_tree('[1, [2]]') WHERE atom", capsys=capsys) == [{"value": 1}, {"value": 2}]
