"""A hostile stream through every command: nothing that a terminal would obey comes out."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gputop.cli import main
from gputop.recording.format import pack_frames, pack_header
from gputop.recording.writer import Writer
from gputop.system import console
from gputop.system.text import one_line
from tests.recording import hostile

OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    header, *frames = hostile.stream()
    writer = Writer(str(folder / f"run{hostile.EVIL}.gputop"), header)  # type: ignore[arg-type]
    for frame in frames:
        writer.add(frame)  # type: ignore[arg-type]
    writer.close()
    return Path(writer.path)


@pytest.mark.parametrize(
    "command",
    [
        ["explain"], ["explain", "--plot"], ["diff", "FILE"], ["diff", "FILE", "--fail-if-slower", "5%"],
        ["diff", "FILE", "--fail-if-slower", hostile.EVIL], ["replay"], ["replay", "--at", hostile.EVIL],
        ["explain", "--from", hostile.EVIL],
        ["query", "SELECT * FROM process"], ["query", "SELECT * FROM process", "--csv"], ["query", "SELECT * FROM process", "--json"],
        ["query", f"SELECT {hostile.EVIL}"], ["export", "--to", "csv", "-o", "FILE"], [hostile.EVIL],
    ],
)  # fmt: skip
def test_commands(command: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = (str(path) if word == "FILE" else word for word in command)
    main([first, str(path), *rest])
    said = capsys.readouterr()
    assert said.out + said.err
    assert OBEYED.findall(said.out + said.err) == []


def test_an_export_is_clean_for_whoever_prints_it(path: Path, tmp_path: Path) -> None:
    assert main(["export", str(path), "--to", "sqlite", "-o", str(tmp_path / "run.sqlite")]) == 0
    assert main(["export", str(path), "--to", "csv", "-o", str(tmp_path / "run")]) == 0
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as database:
        names = [str(name) for row in database.execute("SELECT name, cmdline FROM process") for name in row]
    names.append((tmp_path / "run" / "process.csv").read_text())
    assert any("evil" in name for name in names)
    assert OBEYED.findall("".join(names)) == []


@pytest.mark.parametrize("flags", [[], ["--ascii"]])
def test_once_from_a_hostile_host(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *frames = hostile.stream(30)
    (tmp_path / "stream").write_bytes(pack_header(header) + pack_frames(frames))  # type: ignore[arg-type]
    (tmp_path / "ssh").write_text(f"#!/bin/sh\ncat {tmp_path}/stream\n")
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["--once", "--host", "node", *flags]) == 0
    text = capsys.readouterr().out
    assert "evil" in text
    assert OBEYED.findall(text) == []
    assert not flags or text.isascii()


def test_what_a_host_says_last_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\nprintf 'a banner\\n\\033[2Jgo away\\r\\033[1mnow' >&2; exit 255\n")
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["--once", "--host", "node"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert OBEYED.findall(said) == []


def test_an_error_of_several_lines_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line("bad:\n  a\x1b[2J\r\n\n  b ") == "bad: a·[2J b"
    console.notify("two\nlines")
    console.show(["one\nline"])
    said = capsys.readouterr()
    assert (said.err, said.out) == ("gputop: two lines\n", "one·line\n")
