"""How answers are written: aligned for people, whole for programs, and nothing in them that a terminal obeys."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from gputop import cli
from gputop.model.frame import Frame, ProcInfo, ProcSample, Stack
from gputop.recording.format import pack_frames, pack_header
from tests.recording.made import HEADER, MS, START_NS

EVIL = "py\x1b[2J\x07\u202etrain\nx"


@pytest.fixture
def evil(tmp_path: Path) -> str:
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i, procs=[ProcSample(7, 1, START_NS + i * 100 * MS, "R", 0, 0, 0, 1)],
                    infos=[ProcInfo(7, 1, comm=EVIL, cmdline=[EVIL, "a,\"b'"])] if not i else [],
                    stacks=[Stack(7, 7, START_NS, python=[EVIL])] if not i else []) for i in range(3)]  # fmt: skip
    path = tmp_path / "evil.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    return str(path)


@pytest.mark.parametrize("flags", [[], ["--csv"], ["--json"]])
def test_names_full_of_escapes_do_no_harm(evil: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", evil, "SELECT name, cmdline FROM process", *flags]) == 0
    out = capsys.readouterr().out
    assert "train" in out
    assert not any(char in out for char in "\x1b\x07\u202e")
    if flags == ["--csv"]:
        assert len(list(csv.reader(io.StringIO(out)))) == 2


def test_a_stack_keeps_its_lines(evil: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In what programs read; a table for people has a line for each row."""
    assert cli.main(["export", evil, "--to", "csv", "-o", str(tmp_path / "out")]) == 0
    assert cli.main(["query", evil, "SELECT python FROM stack", "--csv"]) == 0
    for text in (capsys.readouterr().out, (tmp_path / "out" / "stack.csv").read_text()):
        assert "train\nx" in text
        assert "\x1b" not in text
    assert cli.main(["query", evil, "SELECT python FROM stack"]) == 0
    assert capsys.readouterr().out.count("\n") == 2


def test_tables_are_aligned(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", session[0], "SELECT pid, sum(vol) v, NULL none, 'é世' word FROM proc GROUP BY pid"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["pid", "v", "none", "word"]
    assert all(line.endswith("é世") for line in lines[1:])
    assert {len(line) for line in lines[1:]} == {len(lines[1])}
    assert "–" in lines[1]


def test_numbers_stand_on_the_right_and_texts_on_the_left(evil: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a text that begins like a number, and a number beside a value that there is not."""
    texts = "SELECT '7 of 9' text, NULL n, -1.5 x UNION ALL SELECT '-', 12, 10.25 UNION ALL SELECT 'loader', 3, NULL"
    assert cli.main(["query", evil, texts]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "text     n      x",
        "7 of 9   –   -1.5",
        "-       12  10.25",
        "loader   3      –",
    ]


def test_an_empty_answer(session: tuple[str, list[Frame]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", session[0], "SELECT pid FROM proc WHERE pid < 0"]) == 0
    assert capsys.readouterr().out == "pid\n"
    assert cli.main(["query", session[0], "SELECT pid FROM proc WHERE pid < 0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
