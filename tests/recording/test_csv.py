"""CSV that a spreadsheet opens: names of strangers are texts in it, numbers are numbers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from gputop import cli
from gputop.model.frame import ProcInfo
from gputop.recording.writer import Writer
from gputop.system.text import csv_cell
from gputop.tables.schema import TABLES
from tests.recording.made import HEADER, Session

FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "=cmd|'/c calc'!A1", "\t=1", "\r=1", "\n=1", "＝1+1", "-rf", "--flag")
COMPUTED = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Each process is called so that a spreadsheet would compute it."""
    path = tmp_path / "a.gputop"
    writer = Writer(str(path), HEADER)
    for frame in Session(1, len(FORMULAS)).frames(20):
        frame.infos = [
            ProcInfo(info.pid, info.start_ticks, ppid=info.ppid, comm=name[:15], cmdline=[name, name], user=name, cgroup=name)
            for info, name in zip(frame.infos, FORMULAS * 2, strict=False)
        ]
        writer.add(frame)
    writer.close()
    return path


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_an_export_holds_no_formula(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli.main(["export", str(recording), "--to", "csv", "-o", str(out)]) == 0
    texts = 0
    for name, spec in TABLES.items():
        with open(out / f"{name}.csv", newline="") as file:
            for row in list(csv.reader(file))[1:]:
                for column, cell in zip(spec.columns, row, strict=True):
                    assert not cell.startswith(COMPUTED) or is_number(cell), (name, column.name, cell)
                    texts += cell[:1] == "'" and cell[1:].startswith(COMPUTED)
                    assert column.type == "TEXT" or cell == "" or is_number(cell)
    assert texts > len(FORMULAS)


def test_an_answer_holds_no_formula_and_its_numbers_stay(recording: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    asked = "SELECT name, cmdline, -3.5 a, -7 b, printf('%.1f', -2.5) c, '=1' \"=x\", x'3d31' d, -9e999 e FROM process"
    assert cli.main(["query", str(recording), asked, "--csv"]) == 0
    names, *rows = csv.reader(io.StringIO(capsysbinary.readouterr().out.decode(), newline=""))
    assert names[5] == "'=x"
    assert rows
    for name, cmdline, *others in rows:
        assert not name.startswith(COMPUTED)
        assert not cmdline.startswith(COMPUTED)
        assert others == ["-3.5", "-7", "-2.5", "'=1", "'=1", "-inf"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_that_would_be_computed_is_marked(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["", "train.py", "a=b", "'=1", "-3.5", "+1", "-1e-9", "-.5", -3.5, -7, None, float("-inf")])
def test_what_is_a_number_or_begins_like_a_text_stays(value: object) -> None:
    assert csv_cell(value) == value
