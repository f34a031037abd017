"""A statement that takes too long, or too much, is stopped with a line that says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from gputop import cli
from gputop.model.frame import Frame
from gputop.tables import database
from tests.wait import PATIENCE_S

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


@pytest.mark.parametrize("sql", [
    f"{NUMBERS} SELECT count(*) FROM n",
    f"{NUMBERS} SELECT * FROM n WHERE i < 0",
    f"{NUMBERS} SELECT sum(length(randomblob(1000000))) FROM n",
    "SELECT count(*) FROM proc a, proc b, proc c, proc d",
    "SELECT sum(a.duration_ns) FROM events a, events b, events c, events d",
])  # fmt: skip
def test_an_endless_statement_is_stopped(session: tuple[str, list[Frame]], sql: str, capsys: pytest.CaptureFixture[str]) -> None:
    began_s = time.process_time()
    assert cli.main(["query", session[0], sql, "--timeout", "0.3"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("gputop: the statement ran for 0.3 s and was stopped: ask for less time (--last, --from, --until)")
    assert "--timeout" in err
    assert err.count("\n") == 1
    assert time.process_time() - began_s < 30


def test_a_function_that_never_returns_is_stopped_too(session: tuple[str, list[Frame]]) -> None:
    """No interrupt reaches SQLite within one call: the command ends."""
    endless = "SELECT instr(hex(zeroblob(8000000)), substr(hex(zeroblob(4000000)), 2) || '1')"
    argv = [sys.executable, "-m", "gputop", "query", session[0], endless, "--timeout", "0.2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gputop: the statement ran for 0.2 s and was stopped")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("flags", "written"), [
    ([], "i\n1\n2\n3\n"), (["--csv"], "i\n1\n2\n3\n"), (["--json"], '[{"i": 1},\n{"i": 2},\n{"i": 3}'),
])  # fmt: skip
def test_rows_that_come_before_the_end_are_written(
    session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str], flags: list[str], written: str
) -> None:
    """Though more would be written together. (Python's sqlite3 looks for the next row before it gives one, and drops the fourth here.)"""
    assert cli.main(["query", session[0], f"{NUMBERS} SELECT i FROM n WHERE i < 5", *flags, "--timeout", "0.3"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(written)
    assert "was stopped" in err


def test_a_reader_who_is_slow_takes_none_of_the_time(session: tuple[str, list[Frame]]) -> None:
    from gputop.recording.reader import Recording

    with Recording(session[0]) as recording:
        _, rows = database.Database(recording, timeout_s=0.2).ask(f"{NUMBERS} SELECT i FROM n LIMIT 3")
        seen = []
        for row in rows:
            seen.append(row[0])
            time.sleep(0.15)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(("bound", "value", "told"), [("MAX_ANSWER_ROWS", 50, "more than 50 rows"), ("MAX_ANSWER_BYTES", 4 << 30, "")])
def test_an_answer_has_a_bound(
    session: tuple[str, list[Frame]], bound: str, value: int, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, bound, value)
    code = cli.main(["query", session[0], f"{NUMBERS} SELECT i FROM n LIMIT 51", "--json"])
    out, err = capsys.readouterr()
    assert code == bool(told)
    assert told in err
    if told:
        assert "add LIMIT" in err
        assert "gputop export" in err
        assert err.count("\n") == 1
    else:
        assert len(json.loads(out)) == 51


def test_an_answer_is_bounded_by_bytes(
    session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_ANSWER_BYTES", 1 << 20)
    assert cli.main(["query", session[0], f"{NUMBERS} SELECT hex(zeroblob(1000)) FROM n LIMIT 1000", "--csv"]) == 1
    assert "was stopped there" in capsys.readouterr().err


def test_intermediate_results_have_a_bound(
    session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_TEMPORARY_BYTES", 64 << 20)
    sql = f"{NUMBERS} SELECT hex(randomblob(100000)) FROM n ORDER BY 1"
    assert cli.main(["query", session[0], sql]) == 1
    assert "intermediate results" in capsys.readouterr().err


MEMORY = ", ".join(f"group_concat(hex(zeroblob(500000)), '{i}')" for i in range(400))


def test_memory_has_a_bound(session: tuple[str, list[Frame]]) -> None:
    """400 texts grow at once; each by itself would be allowed. (``ru_maxrss`` would count the process that started this one, too.)"""
    script = ("import sys; from gputop import cli; code = cli.main(sys.argv[1:]); "
              "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]); sys.exit(code)")  # fmt: skip
    sql = f"{NUMBERS} SELECT {MEMORY} FROM (SELECT i FROM n LIMIT 60)"
    argv = [sys.executable, "-c", script, "query", session[0], sql]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "MiB of memory" in done.stderr
    assert done.stderr.count("\n") == 1
    assert int(done.stdout) < 1_200_000


def test_a_timeout_is_a_time(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", session[0], "SELECT 1", "--timeout", "soon"]) == 2
    assert "--timeout" in capsys.readouterr().err
    assert cli.main(["query", session[0], "SELECT 1 a", "--timeout", "5m", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"a": 1}]


def test_the_bounds_leave_nothing_behind(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    """After a statement that was stopped the next one has all of its time."""
    for _ in range(3):
        assert cli.main(["query", session[0], f"{NUMBERS} SELECT count(*) FROM n", "--timeout", "0.2"]) == 1
    assert cli.main(["query", session[0], "SELECT count(*) n FROM proc", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["n"] > 0
