"""Exports to files: what a query gives, whole or not at all."""

from __future__ import annotations

import csv
import json
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as parquet
import pytest
from msgspec.structs import replace

from gputop import cli
from gputop.model.frame import Frame, Gpu
from gputop.recording.format import pack_frames, pack_header
from gputop.tables.exports import FORMATS, Row, batches
from gputop.tables.schema import TABLES
from tests.recording.made import HEADER, MS, START_NS, Session, record
from tests.recording.test_query import ask


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two seconds, for whatever happens beside an export."""
    path = tmp_path_factory.mktemp("brief") / "b.gputop"
    record(path, Session(1, 2, threads=2).frames(20))
    return str(path)


WORKS = dict.fromkeys(FORMATS, "batches") | {"html": "follow"}
"""Format -> the function of its module that reads the recording."""


@pytest.mark.parametrize("to", ["csv", "sqlite"])
def test_exports_hold_what_a_query_gives(
    session: tuple[str, list[Frame]], tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["export", session[0], "--to", to, "-o", str(out)]) == 0
    for name in TABLES:
        (row,) = ask(session[0], f"SELECT count(*) n FROM {name}", capsys=capsys)
        if to == "csv":
            with open(out / f"{name}.csv", newline="") as file:
                assert sum(1 for _ in csv.reader(file)) - 1 == row["n"]
        else:
            with sqlite3.connect(out) as database:
                assert database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] == row["n"]
    assert out.stat().st_mode & 0o77 == 0
    assert cli.main(["export", session[0], "--to", to, "-o", str(out)]) == 1
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("to", FORMATS)
def test_an_export_that_cannot_be_finished_is_gone(
    session: tuple[str, list[Frame]], tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # a module's would be cut, too
    out, (_, hard) = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        assert cli.main(["export", session[0], "--to", to, "-o", str(out)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert capsys.readouterr().err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("to", ["csv", "sqlite", "perfetto"])
def test_a_signal_leaves_no_half_of_an_export(
    brief: str, tmp_path: Path, to: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a job is cancelled, or its terminal lost."""

    def stopped(*what: Any) -> Iterator[tuple[str, list[Row]]]:
        for batch in batches(*what):
            yield batch
            signal.raise_signal(number)

    monkeypatch.setattr(f"gputop.tables.export_{to}.batches", stopped)
    try:
        code: object = cli.main(["export", brief, "--to", to, "-o", str(tmp_path / "out")])
    except SystemExit as ended:
        code = ended.code
    assert code == 128 + number
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("to", FORMATS)
def test_kill_9_leaves_what_says_that_it_is_not_finished(brief: str, tmp_path: Path, to: str) -> None:
    code = f"""
import os
from gputop import cli
from gputop.tables import export_{to} as form
form.{WORKS[to]} = lambda *_: os.kill(os.getpid(), {int(signal.SIGKILL)})
cli.main(["export", {brief!r}, "--to", "{to}", "-o", "out"])
"""
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == -signal.SIGKILL
    assert {path.name for path in tmp_path.iterdir()} == {"out.unfinished", "out.unfinished-2"}
    assert all(path.stat().st_mode & 0o77 == 0 for path in tmp_path.iterdir())


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_comes_there_meanwhile_stays(
    brief: str,
    tmp_path: Path,
    to: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"

    work = getattr(import_module(f"gputop.tables.export_{to}"), WORKS[to])

    def late(*what: Any) -> Any:
        told = work(*what) if to == "html" else list(work(*what))
        out.touch() if kind == "file" else out.mkdir() if kind == "directory" else out.symlink_to("/nowhere")
        return told

    monkeypatch.setattr(f"gputop.tables.export_{to}.{WORKS[to]}", late)
    assert cli.main(["export", brief, "--to", to, "-o", str(out)]) == 1
    assert "give another name" in capsys.readouterr().err
    assert (out.is_file(), out.is_dir(), out.is_symlink()) == (kind == "file", kind == "directory", kind == "link")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("to", ["sqlite", "csv"])
def test_an_unfinished_export_that_somebody_takes_away_is_no_success(
    brief: str, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(*what: Any) -> Iterator[tuple[str, list[Row]]]:
        yield from batches(*what)
        (tmp_path / "out.unfinished").rename(tmp_path / "elsewhere")

    monkeypatch.setattr(f"gputop.tables.export_{to}.batches", late)
    assert cli.main(["export", brief, "--to", to, "-o", str(tmp_path / "out")]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_an_export_needs_a_name(
    session: tuple[str, list[Frame]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for to in FORMATS:
        assert cli.main(["export", session[0], "--to", to, "-o", "-"]) == 2
    assert "-o" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_parquet_holds_what_a_query_gives(session: tuple[str, list[Frame]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", session[0], "--to", "parquet", "-o", str(tmp_path / "out")]) == 0
    for name in TABLES:
        (row,) = ask(session[0], f"SELECT count(*) n FROM {name}", capsys=capsys)
        table = parquet.read_table(tmp_path / "out" / name)
        assert table.num_rows == row["n"]
        assert table.column_names == [*(column.name for column in TABLES[name].columns), "host", "date"]


def test_parquet_files_of_many_hosts_and_days_are_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four seconds around midnight, on two hosts; one has a name that is no name of a folder."""
    midnight_ns = 1_800_057_600 * 10**9  # 2027-01-15, 00:00 UTC
    out = tmp_path / "lake"
    for host in ("node01", "a/../b=c"):
        header = replace(HEADER, host=host, boot_id=f"{host}-boot", unix_ns=midnight_ns - 2 * 10**9 - START_NS)
        frames = [Frame(i, START_NS + i * 100 * MS, key=not i, gpus=[Gpu(0, START_NS + i * 100 * MS, util_pct=50.0)]) for i in range(40)]
        path = tmp_path / f"{len(host)}.gputop"
        path.write_bytes(pack_header(header) + pack_frames(frames))
        assert cli.main(["export", str(path), "--to", "parquet", "-o", str(out)]) == 0
        assert cli.main(["export", str(path), "--to", "parquet", "-o", str(out)]) == 1
        assert "already" in capsys.readouterr().err
    assert {path.parent.parent.name for path in (out / "gpu").rglob("*.parquet")} == {"host=node01", "host=a%2F..%2Fb%3Dc"}
    assert not list(out.glob(".*"))
    files = f"read_parquet('{out}/gpu/**/*.parquet', hive_partitioning = true)"
    with closing(duckdb.connect()) as database:
        found = database.execute(f"SELECT host, date::VARCHAR, count(*) FROM {files} GROUP BY ALL ORDER BY ALL").fetchall()
    assert found == [(host, day, 20) for host in ("a/../b=c", "node01") for day in ("2027-01-14", "2027-01-15")]


def test_parquet_goes_into_no_other_directory(session: tuple[str, list[Frame]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "diary").write_text("mine")
    assert cli.main(["export", session[0], "--to", "parquet", "-o", str(tmp_path)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["diary"]


def test_parquet_without_its_library_says_how_to_get_it(
    session: tuple[str, list[Frame]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.main(["export", session[0], "--to", "parquet", "-o", str(tmp_path / "out")]) == 1
    assert "pip install" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("old", [True, False])
def test_what_is_no_number_was_not_measured(tmp_path: Path, old: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """As drivers answered it, and recordings kept it."""
    odd = [float("inf"), float("nan"), 1e308, None, 50.04]
    gpus = [Gpu(0, START_NS + i * 100 * MS, power_w=value, util_pct=value, temp_c=value) for i, value in enumerate(odd)]
    frames = [Frame(i, gpu.t_ns, key=not i, gpus=[gpu]) for i, gpu in enumerate(gpus)]
    path, out = tmp_path / "odd.gputop", tmp_path / "odd.json"
    if old:
        path.write_bytes(pack_header(HEADER) + pack_frames(frames))
    else:
        record(path, frames)
    rows = ask(str(path), "SELECT power_w, util_pct, temp_c FROM gpu ORDER BY t_ns", capsys=capsys)
    assert [list(row.values()) for row in rows] == [*[[None] * 3] * 4, pytest.approx([50.04] * 3, abs=0.05)]
    assert cli.main(["export", str(path), "--to", "perfetto", "-o", str(out)]) == 0
    events = json.loads(out.read_text(), parse_constant=pytest.fail)["traceEvents"]
    assert [event["args"]["value"] for event in events if event["name"] == "temp_c"] == [50.04]


def test_numbers_that_no_table_can_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has measured them: their place is empty."""
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i, gpus=[Gpu(0, 0, mem_used_bytes=(7, 2**64 - 1, 9)[i % 3])]) for i in range(60)]
    path = tmp_path / "made_up.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames(frames[i : i + 20]) for i in (0, 20)) + pack_frames(frames[-1:]))
    sql = "SELECT count(*) n, count(mem_used_bytes) told, sum(mem_used_bytes) sum FROM gpu"
    assert cli.main(["query", str(path), sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 41, "told": 28, "sum": 14 * 7 + 14 * 9}]
    assert cli.main(["export", str(path), "--to", "sqlite", "-o", str(tmp_path / "out.sqlite")]) == 0
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as database:
        assert database.execute(sql).fetchall() == [(41, 28, 14 * 7 + 14 * 9)]
    assert cli.main(["export", str(path), "--to", "parquet", "-o", str(tmp_path / "out")]) == 0
