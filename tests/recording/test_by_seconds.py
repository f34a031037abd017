"""Queries and exports of a long stretch are read by seconds: their sums and counts are those of every tick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gputop import cli
from gputop.model.frame import Mark, Stack
from gputop.recording.reader import Recording
from gputop.stream import judged
from tests.recording.made import HEADER, START_NS, Session, record
from tests.recording.test_events import MOST_SWITCHES, WINDOWS

REAL = ("story", "gpt-checkpoints", "unprobed-generates")
DATA = Path(__file__).parents[1] / "device" / "data"
EXACT = {
    "marks": "SELECT count(*), group_concat(text), min(t_ns), max(t_ns) FROM mark",
    "stacks": "SELECT count(*), sum(length(kernel)) FROM stack",
    "processes": "SELECT count(*), group_concat(name) FROM (SELECT name FROM process ORDER BY pid, start_ticks)",
    "preempts": "SELECT count(DISTINCT victim_tid << 32 | culprit_tid), sum(lost_s) FROM preempt",
    "wakeups": "SELECT wakee_tid, waker_tid, sum(times) FROM wakeup GROUP BY 1, 2 ORDER BY 1, 2",
    "synchronize calls": "SELECT pid, call, sum(calls), round(sum(total_ms), 1), max(max_ms) FROM sync GROUP BY 1, 2 ORDER BY 1, 2",
    "copies": "SELECT pid, call, sum(calls), sum(bytes) FROM copy GROUP BY 1, 2 ORDER BY 1, 2",
    "CPU": "SELECT pid, round(sum(cpu_s), 2), sum(switches), round(sum(oncpu_s), 2), sum(read_bytes) FROM proc GROUP BY 1 ORDER BY 1",
    "switches of threads": "SELECT sum(thread_switches), max(stall_ms) FROM proc",
    "energy": "SELECT gpu, round(sum(energy_j), 1), sum(pcie_rx_bytes) FROM gpu GROUP BY 1 ORDER BY 1",
    "host": "SELECT sum(switches), round(sum(cpu_user_s), 1), sum(pgmajfault) FROM host",
    "disks": "SELECT disk, sum(reads), sum(read_bytes) FROM disk GROUP BY 1 ORDER BY 1",
    "main threads": "SELECT pid, sum(samples), sum(waits) FROM main_thread GROUP BY 1 ORDER BY 1",
    "gaps": "SELECT coalesce(sum(missed), 0) FROM gap",
}
CLOSE = {
    "threads off a CPU": "SELECT sum(thread_offcpu_s) FROM proc",
    "times of preempts": "SELECT sum(times) FROM preempt",  # a pair that the probe forgot may be back before the next key frame
    "tally": "SELECT op, sum(times), sum(total_ns) / 1e9 FROM tally GROUP BY 1 ORDER BY 1",
    "published question": f"SELECT process, context_switches, total_off_cpu_sec FROM ({MOST_SWITCHES})",
    "published windows": f"SELECT sum(ctx_switches), sum(sync_calls), avg(sync_avg_us) FROM ({WINDOWS})",
}


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stretch is long."""
    monkeypatch.setattr(judged, "LONG_NS", 0)


RECORDINGS = ("made", "made without probes", "respawns", *(pytest.param(name, marks=pytest.mark.soak) for name in REAL))


@pytest.fixture(scope="module", params=RECORDINGS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seconds") / "a.gputop"
    if request.param.startswith("made"):
        frames, header = list(Session(2, 9, threads=3, probes=request.param == "made").frames(605)), HEADER
        frames[333].stacks = [Stack(3000, 3000, START_NS, kernel=["schedule", "read"])]
    else:
        with Recording(str(DATA / f"{request.param}.gputop")) as kept:
            frames, header = list(kept.frames()), kept.header
    record(path, frames, header)
    return path


def ask(path: Path, sql: str, *flags: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    assert cli.main(["query", str(path), sql, "--json", *flags]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_sums_and_counts_by_seconds_are_those_by_ticks(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    different = {}
    for name, sql in {**EXACT, **CLOSE}.items():
        seconds, said = ask(path, sql, capsys=capsys)
        ticks, silent = ask(path, sql, "--fine", capsys=capsys)
        assert "read at 1 s; --fine reads every tick" in said
        assert "read at" not in silent
        if not same(seconds, ticks, exactly=name in EXACT):
            different[name] = seconds, ticks
    assert not different


def same(some: list[dict[str, Any]], others: list[dict[str, Any]], exactly: bool) -> bool:
    """Counts and texts are equal, or nearly so; sums of times nearly."""
    if len(some) != len(others):
        return False
    pairs = [(a, b) for one, other in zip(some, others, strict=True) for a, b in zip(one.values(), other.values(), strict=True)]
    if exactly:
        return all(a == (pytest.approx(b, rel=1e-3, abs=0.02) if isinstance(b, float) else b) for a, b in pairs)
    return all(a == (b if isinstance(b, str) else pytest.approx(b, rel=0.03, abs=0.5)) for a, b in pairs)


def test_an_export_by_seconds_has_a_row_a_second(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {}
    for flags in ([], ["--fine"]):
        out = tmp_path / f"out{len(flags)}"
        assert cli.main(["export", str(path), "--to", "csv", "-o", str(out), *flags]) == 0
        assert ("read at 1 s" in capsys.readouterr().err) is not bool(flags)
        rows[len(flags)] = {file.stem: len(file.read_text().splitlines()) - 1 for file in out.glob("*.csv")}
    assert rows[0]["proc"] < 0.6 * rows[1]["proc"]
    assert [rows[0][name] for name in ("mark", "stack", "process")] == [rows[1][name] for name in ("mark", "stack", "process")]


def test_explain_says_by_what_it_judged(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, read_at in (([], "1 s"), (["--fine"], "every tick")):
        assert cli.main(["explain", str(path), "--json", *flags]) == 0
        said = capsys.readouterr()
        found = json.loads(said.out)
        assert (found["judged_by"], found["read_at"]) == ("explain", read_at)
        assert ("read at 1 s; --fine reads every tick" in said.err) is not bool(flags)


def test_a_stretch_by_seconds_has_whole_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = list(Session(1, 3, threads=2).frames(600))
    frames[237].marks = [Mark(frames[237].t_ns, "late in its second")]
    record(tmp_path / "a.gputop", frames)
    flags = ["--from", "10.5", "--until", "late in its second"]
    rows, _ = ask(tmp_path / "a.gputop", "SELECT min(t_s) a, max(t_s) b, count(*) n FROM proc WHERE pid = 3000", *flags, capsys=capsys)
    assert 10 < rows[0]["a"] < 11
    assert 23.5 < rows[0]["b"] < 24
    assert rows[0]["n"] == 14


def test_what_holds_no_frames_is_explained_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "a.gputop", [])
    assert cli.main(["explain", str(tmp_path / "a.gputop"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["incidents"] == []
    assert "it holds no frames" in said.err


def test_a_trace_says_by_what_it_was_read(tmp_path: Path) -> None:
    record(tmp_path / "a.gputop", Session(1, 3, threads=2).frames(300))
    for flags, read_at in (([], "1 s"), (["--fine"], "every tick")):
        out = tmp_path / f"{len(flags)}.json"
        assert cli.main(["export", str(tmp_path / "a.gputop"), "--to", "perfetto", "-o", str(out), *flags]) == 0
        assert json.loads(out.read_text())["otherData"] == {"read_at": read_at}
