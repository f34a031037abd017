"""What `gputop replay` says about files that are no recordings, and about wrong usage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gputop.model.frame import Header
from gputop.recording.format import pack_header
from tests.tui import scene
from tests.tui.minute import path as path
from tests.wait import PATIENCE_S


def gputop(*arguments: str, stdin: bytes | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "gputop", "replay", *arguments], input=stdin or b"", capture_output=True,
        timeout=PATIENCE_S, start_new_session=True
    )  # fmt: skip
    return done.returncode, done.stderr.decode()


def bad(kind: str, folder: Path) -> str:
    path = folder / "bad.gputop"
    if kind == "directory":
        path.mkdir()
    elif kind == "no recording":
        path.write_bytes(b"hello " * 1000)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "newer":
        path.write_bytes(pack_header(Header(major=99)))
    elif kind == "no frames":
        path.write_bytes(pack_header(scene.HEADER))
    elif kind == "device":
        return "/dev/zero"
    elif kind == "escapes":
        return str(folder / "\x1b[2Jbad")
    return str(path)


@pytest.mark.parametrize("kind", ["absent", "directory", "no recording", "empty", "newer", "no frames", "device", "escapes"])
def test_what_is_no_recording_is_said_in_a_line(tmp_path: Path, kind: str) -> None:
    code, said = gputop(bad(kind, tmp_path))
    assert code == 1
    assert said.count("\n") == 1
    assert said.startswith("gputop: ")
    assert "\x1b" not in said
    assert "terminal" not in said


@pytest.mark.parametrize(
    "arguments",
    [[], ["x", "--sample"], ["x", "--speed", "65"], ["x", "--speed", "0"], ["x", "--speed", "nan"], ["-", "--at", "+5s"], ["-", "x"],
     ["x", "-"]],
)
def test_wrong_usage_is_exit_2(arguments: list[str]) -> None:
    code, said = gputop(*arguments)
    assert (code, said.count("\n")) == (2, 1)


def test_a_time_outside_is_wrong_usage(path: Path) -> None:
    code, said = gputop(str(path), "--at", "+2h")
    assert (code, said.count("\n")) == (2, 1)
    assert "outside the recording" in said


def test_without_a_terminal_it_says_so(path: Path) -> None:
    for code, said in (gputop(str(path)), gputop("-", stdin=path.read_bytes())):
        assert (code, said.count("\n")) == (1, 1)
        assert "terminal" in said
