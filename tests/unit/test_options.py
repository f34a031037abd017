"""Lengths of time and counts as people write them, and what is no such thing."""

from __future__ import annotations

import argparse

import pytest

from gputop.cli import make_parser
from gputop.commands import live
from gputop.commands.options import check_user, duration, indices, number
from gputop.system.errors import UserError


@pytest.mark.parametrize(("text", "seconds"), [
    ("1h30m", 5400), ("1m 30s", 90),
    ("90", 90), ("90s", 90), ("1.5", 1.5), (".5", 0.5), ("10m", 600), ("1.5h", 5400), ("2d", 172_800), (" 20 s ", 20), ("250ms", 0.25),
])  # fmt: skip
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert duration()(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-5", "0", "1e3", "5x", "m", "1h30", "30 m5", "٣", "9" * 400, "0ms", "20000d"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write 90, 90s, 10m or 2h"):
        duration()(text)


def test_bounds_are_told_as_they_were_written() -> None:
    assert duration("5s", "1h")("60m") == 3600
    with pytest.raises(argparse.ArgumentTypeError, match="'61m' is no time from 5s to 1h"):
        duration("5s", "1h")("61m")


def test_counts() -> None:
    assert (number()("7"), number(0)("0")) == (7, 0)
    for text in ("0", "-1", "x", "1.5", "", "9" * 400):
        with pytest.raises(argparse.ArgumentTypeError):
            number()(text)


@pytest.mark.parametrize("name", ["²", "no such user", "99999999"])
def test_a_user_that_is_none(name: str) -> None:
    with pytest.raises(UserError, match="there is no user"):
        check_user(name)


def test_a_range_of_gpus_without_end_costs_nothing() -> None:
    assert indices("0-99999999999") >= {0, 7, 1000}


@pytest.mark.parametrize(("words", "way"), [
    ([], "live"), (["--host", "node7"], "live"), (["--host", "node7,node7", "--once"], "once"), (["--json"], "once"), (["--line"], "once"),
    (["--host", "node[01-02]"], "fleet"), (["--host", "a,b", "--once", "--json"], "fleet"), (["--job", "4711"], "fleet"),
    (["--pods", "app=train", "--line", "tmux"], "fleet"), (["--hosts", "/no/such/file"], "fleet"),
])  # fmt: skip
def test_the_arguments_name_the_module_that_runs(words: list[str], way: str) -> None:
    args = make_parser("live")[0].parse_args(words)
    assert live.way(args) == way
    if way != "fleet":
        assert args.host in (None, "node7"), "one machine is named once"


def test_a_host_that_cannot_be_read_and_two_forms_at_once_are_refused() -> None:
    for words in (["--host", "node[1-"], ["--line", "--json"]):
        with pytest.raises(UserError):
            live.way(make_parser("live")[0].parse_args(words))
