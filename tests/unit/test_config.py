"""The user's file gives defaults, a flag comes before it, and what it says wrong is told in a line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from gputop import cli
from gputop.commands import live
from gputop.system import config
from gputop.system.errors import UserError


def _write(text: str) -> None:
    path = Path(config.config_path())
    path.parent.mkdir(parents=True)
    path.write_text(text)


def _parsed(*arguments: str, strict: bool = True) -> argparse.Namespace:
    parser = cli.Parser()
    live.add_arguments(parser)
    config.apply(parser, strict)
    return parser.parse_args(arguments)


def test_without_a_file_everything_is_as_always() -> None:
    assert _parsed().interval == 0.1
    assert config.key_map() == {}


def test_the_file_sets_defaults_and_flags_come_before_it() -> None:
    _write('interval = 0.5\nno-ebpf = true\ngpu = "0-1"\nlight = true\n[keys]\nquit = "x"\n')
    assert vars(_parsed()) | {"interval": 0.5, "no_ebpf": True, "gpu": frozenset({0, 1}), "light": True} == vars(_parsed())
    assert _parsed("--interval", "1").interval == 1.0
    assert config.key_map() == {"quit": "x"}


@pytest.mark.parametrize(("text", "is_ascii"), [("", None), ("ascii = true", True), ("ascii = false", False), ("no-ascii = true", False)])
def test_a_flag_that_has_an_opposite_is_set_by_both(text: str, is_ascii: bool | None) -> None:
    _write(text)
    assert _parsed().ascii is is_ascii
    assert _parsed("--ascii").ascii is True
    assert _parsed("--no-ascii").ascii is False


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("interval = ", "config.toml"), ("interval = 0.001", "outside"), ("interval = true", "wants a value"),
        ("light = 3", "true or false"), ("pid = 'abc'", "pid = 'abc': 'abc' is no process id"),
        ("colour = 'red'", "no flag"), ("\xff", "config.toml"),
    ],
)  # fmt: skip
def test_mistakes_are_told(text: str, part: str) -> None:
    path = Path(config.config_path())
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=part):
        _parsed()


@pytest.mark.parametrize(("text", "part"), [("shape = 'round'", "invalid choice: 'round'"), ("size = 'x'", "invalid int value: 'x'")])
def test_values_are_checked_as_on_the_command_line(text: str, part: str) -> None:
    _write(text)
    parser = cli.Parser()
    parser.add_argument("--shape", choices=["square"])
    parser.add_argument("--size", type=int)
    with pytest.raises(UserError, match=part):
        config.apply(parser, strict=True)


def test_alerts_are_a_table_of_their_own() -> None:
    assert config.alerts() == config.Alerting([], "medium")
    _write('interval = 0.5\n[alerts]\nsinks = ["bell", "exec:logger"]\nseverity = "high"\n')
    assert config.alerts() == config.Alerting(["bell", "exec:logger"], "high")
    assert _parsed().alert is None
    assert _parsed("--alert", "desktop").alert == ["desktop"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[alerts]\nsinks = 'bell'", r"\[alerts\] Expected `array`"), ("[alerts]\nseverity = 'info'", "Invalid enum value"),
        ("[alerts]\nsound = 1", "unknown field"), ("alerts = 3", "Expected `object`"),
    ],
)  # fmt: skip
def test_mistakes_in_alerts_are_told(text: str, part: str) -> None:
    _write(text)
    with pytest.raises(UserError, match=part):
        config.alerts()


def test_an_alert_among_the_flags_is_told_its_place() -> None:
    _write("alert = 'bell'")
    with pytest.raises(UserError, match=r"sinks = \['bell'\] under \[alerts\]"):
        _parsed()


def test_what_is_no_file_is_not_waited_for() -> None:
    for path in (config.config_path(), config.state_path()):
        Path(path).parent.mkdir(parents=True)
        os.mkfifo(path)
    with pytest.raises(UserError, match="no regular file"):
        config.load()
    assert config.load_screen() == config.Saved()


def test_dev_null_is_an_empty_file() -> None:
    for path in (config.config_path(), config.state_path()):
        Path(path).parent.mkdir(parents=True)
        Path(path).symlink_to(os.devnull)
    assert config.load() == {}
    assert config.load_screen() == config.Saved()


def test_keys_must_be_text() -> None:
    _write("[keys]\nquit = 3\n")
    with pytest.raises(UserError, match="keys"):
        config.key_map()


def test_a_file_of_another_command_s_flags_does_not_disturb() -> None:
    _write("readonly = true\n")
    parser = cli.Parser()
    config.apply(parser, strict=False)
    assert vars(parser.parse_args([])) == {}


def test_the_screen_is_kept() -> None:
    kept = config.Saved(120, "cpu", True, False, "gputop-light")
    config.save_screen(kept)
    assert config.load_screen() == kept


@pytest.mark.parametrize("text", ["", "[]", '{"window_s": 1}', '{"sort": 3}'])
def test_a_broken_state_is_a_new_screen(text: str) -> None:
    path = Path(config.state_path())
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert config.load_screen() == config.Saved()
