"""Terminals and locales that are not UTF-8: people get what their charset can show, files and pipes for programs stay UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.model.frame import Frame
from tests.recording.made import MS, Session, record
from tests.wait import PATIENCE_S

OTHER = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "posix": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.fixture(params=list(OTHER))
def charset(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def gputop(charset: str, *argv: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "gputop", *argv], env={**os.environ, **OTHER[charset]}, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_an_answer_is_drawn_in_what_the_charset_has(charset: str, session: tuple[str, list[Frame]]) -> None:
    rows = gputop(charset, "query", session[0], "select null, 'é' here, '←日'").splitlines()
    assert rows[1].split() == [b"-", b"\xe9" if charset == "latin-1" else b"?", b"<??"]


def test_csv_is_utf_8(charset: str, session: tuple[str, list[Frame]]) -> None:
    assert gputop(charset, "query", "--csv", session[0], "select 'é日' here").decode() == "here\né日\n"


def test_a_comparison_and_a_picture_are_drawn(charset: str, session: tuple[str, list[Frame]], tmp_path: Path) -> None:
    named = tmp_path / "é.gputop"
    named.write_bytes(Path(session[0]).read_bytes())
    assert gputop(charset, "diff", session[0], str(named))
    assert b"GPU utilization" in gputop(charset, "explain", "--plot", str(named))


@pytest.mark.parametrize("form", ["csv", "perfetto"])
def test_exports_are_utf_8(charset: str, form: str, tmp_path: Path) -> None:
    frame = Session().frame(100 * MS, key=True)
    frame.infos = [replace(info, comm="träne日") for info in frame.infos]
    record(path := tmp_path / "a.gputop", [frame])
    out = tmp_path / "out"
    gputop(charset, "export", str(path), "--to", form, "-o", str(out))
    written = (out / "process.csv" if form == "csv" else out).read_text(encoding="utf-8")
    assert "träne日" in written or r"tr\u00e4ne\u65e5" in written
