"""Which characters a terminal is given, by what its user's locale and flags say."""

from __future__ import annotations

import pytest

from gputop.system import console


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
