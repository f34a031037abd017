"""Which characters a terminal is given, by what its user's locale and flags say, and which it never gets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gputop.system import console
from tests.wait import PATIENCE_S


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, ""), ({"LC_ALL": ""}, ""), ({"LANG": "en_US"}, ""), ({"LC_MESSAGES": "C"}, ""),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, "ASCII"), ({"LC_ALL": "", "LANG": "POSIX"}, "ASCII"),
        ({"LC_ALL": "C.UTF-8", "LC_CTYPE": "C"}, "UTF-8"), ({"LC_CTYPE": "C", "LANG": "en_US.UTF-8"}, "ASCII"),
        ({"LANG": "de_DE.ISO-8859-15@euro"}, "ISO-8859-15"), ({"LANG": "de_DE.utf8@euro"}, "utf8"),
    ],
)  # fmt: skip
def test_the_first_variable_that_is_set_says_it(environ: dict[str, str], named: str) -> None:
    assert console.named_charset(environ) == named


class Output:
    def __init__(self, encoding: str) -> None:
        self.encoding = encoding


@pytest.mark.parametrize(
    ("lang", "encoding", "asked", "ascii_only"),
    [
        ("", "utf-8", None, False), ("", "utf-8", True, True), ("", "latin-1", None, True), ("C", "utf-8", None, True),
        ("C", "utf-8", False, False), ("en_US.UTF-8", "utf-8", None, False), ("en_US.UTF-8", "latin-1", False, True),
    ],
)  # fmt: skip
def test_ascii_is_drawn_where_it_is_asked_for_or_the_terminal_is_no_utf8(
    lang: str, encoding: str, asked: bool | None, ascii_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_started_with", lambda: {"LANG": lang})
    monkeypatch.setattr(console.sys, "stdout", Output(encoding))
    assert console.draws_ascii(asked) is ascii_only


HOSTILE = "evil\x1b]0;owned\x07\x1b[2J\x9b31m\r"
LIBRARIES = """
import asyncio, logging, sys, warnings
from gputop import cli
from gputop.commands import skill

def run(args):
    hostile = sys.stdin.read()
    logging.getLogger("mcp.server").warning("Invalid Host header: %s", hostile)
    handler = logging.StreamHandler()
    logging.getLogger("uvicorn.error").addHandler(handler)
    logging.getLogger("uvicorn.error").error("Invalid request: %s", hostile)
    warnings.warn(hostile)
    loop = asyncio.new_event_loop()
    loop.call_exception_handler({"message": hostile})
    loop.close()
    print(hostile, file=sys.stderr)
    raise ValueError(hostile)

skill.run = run
sys.argv[1:] = ["skill"]
sys.exit(cli.main())
"""


def test_what_libraries_print_of_others_is_no_control_sequence(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    ended = subprocess.run(
        [sys.executable, "-c", LIBRARIES], input=HOSTILE, capture_output=True, encoding="utf-8", env=env, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 1
    log = (tmp_path / "gputop" / "errors.log").read_text(encoding="utf-8")
    for text in (ended.stderr, log):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), text
    for wanted in ("Invalid Host header: evil", "Invalid request: evil", "UserWarning: evil", "bug: ValueError: evil"):
        assert wanted in ended.stderr
    assert len(ended.stderr.splitlines()) > 5, "lines stay lines"
