"""The user's file gives defaults, a flag comes before it, and what it says wrong is told in a line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gputop import cli
from gputop.commands import live
from gputop.system import config, screenstate
from gputop.system.errors import UserError

tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def _write(text: str) -> None:
    path = Path(config.config_path())
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The administrator's file."""
    path = tmp_path / "etc.toml"
    monkeypatch.setattr(config, "SYSTEM_PATH", str(path))
    return path


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_of_an_editor_of_windows_is_read(encoding: str) -> None:
    path = Path(config.config_path())
    path.parent.mkdir(parents=True)
    path.write_bytes('interval = 0.3\r\n[keys]\r\nquit = "X"\r\n'.encode(encoding))
    assert _parsed().interval == 0.3
    assert config.key_map() == {"quit": "X"}


def _parsed(*arguments: str, strict: bool = True) -> argparse.Namespace:
    parser = cli.Parser()
    live.add_arguments(parser)
    config.apply(parser, strict)
    return parser.parse_args(arguments)


def test_without_a_file_everything_is_as_always() -> None:
    assert _parsed().interval == 0.1
    assert config.key_map() == {}


def test_the_file_sets_defaults_and_flags_come_before_it() -> None:
    _write('interval = 0.5\nno-ebpf = true\ngpu = "0-1"\nlight = true\n[keys]\nquit = "X"\n')
    assert vars(_parsed()) | {"interval": 0.5, "no_ebpf": True, "gpu": frozenset({0, 1}), "light": True} == vars(_parsed())
    assert _parsed("--interval", "1").interval == 1.0
    assert config.key_map() == {"quit": "X"}


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
        ("colour = 'red'", "no flag"), ("\xff", "config.toml"), ("x = " + "[" * 3000, "config.toml: "),
    ],
)  # fmt: skip
def test_mistakes_are_told(text: str, part: str) -> None:
    path = Path(config.config_path())
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=part):
        _parsed()


_DEEP = "a." * 20_000 + "b"


@pytest.mark.parametrize(
    "text",
    [
        f"{_DEEP} = 1", f"[{_DEEP}]", f"[[{_DEEP}]]", f"x = {{{_DEEP} = 1}}", "a . " * 10_000 + "a = 1",
        ".".join(['"a.b"'] * 10_000) + " = 1", ".".join(['"\u2028"'] * 10_000) + " = 1",
        f"interval = 0.3\r\n[{'a.' * 60}b]\r\n" + "c = 1\r\n" * 8_000,
    ],
)  # fmt: skip
def test_a_key_of_very_many_parts_costs_no_time(text: str) -> None:
    _write(text)
    began_s = time.thread_time()
    with pytest.raises(UserError, match=r"config\.toml: more than 50 dots in a key \(at line [12]\)"):
        _parsed()
    assert time.thread_time() - began_s < 1.0  # a minute if tomllib read it


def test_dots_of_values_and_of_other_keys_are_not_counted() -> None:
    versions = ", ".join(f'"webhook:https://a.example/{number}.{number}"' for number in range(100))
    _write(f"interval = 0.3\n[alerts]\nsinks = [{versions}]\n")
    assert len(config.alerts().sinks) == 100


@pytest.mark.parametrize(("text", "part"), [("shape = 'round'", "invalid choice: 'round'"), ("size = 'x'", "invalid int value: 'x'")])
def test_values_are_checked_as_on_the_command_line(text: str, part: str) -> None:
    _write(text)
    parser = cli.Parser()
    parser.add_argument("--shape", choices=["square"])
    parser.add_argument("--size", type=int)
    with pytest.raises(UserError, match=part):
        config.apply(parser, strict=True)


def test_flag_before_variable_before_the_users_file_before_the_systems(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = 'interval = 0.3\nuser = "root"\nlight = true\nascii = true\n'
    tables = '[keys]\nquit = "X"\npause = "d"\n[alerts]\nsinks = ["bell"]\n'
    system.write_text(flags + tables)
    assert (_parsed().interval, _parsed().user, _parsed().light) == (0.3, "root", True)
    _write('interval = 0.5\nlight = false\nno-ascii = true\n[keys]\nquit = "y"\n[alerts]\nseverity = "high"\n')
    assert (_parsed().interval, _parsed().user, _parsed().light, _parsed().ascii) == (0.5, "root", False, False)
    assert config.key_map() == {"pause": "d", "quit": "y"}
    assert config.alerts() == config.Alerting(["bell"], "high")
    for name, text in {"INTERVAL": "1", "NO_EBPF": "on", "ASCII": "1", "USER": "", "ALERT": "exec:logger", "PORT": "tcp://10.0.0.1:80"}.items():
        monkeypatch.setenv(f"GPUTOP_{name}", text)
    told = _parsed()
    assert (told.interval, told.no_ebpf, told.ascii, told.user, told.alert) == (1.0, True, True, "root", None)
    assert config.alerts().sinks == ["exec:logger"]
    assert _parsed("--interval", "2", "--alert", "bell").interval == 2.0


@pytest.mark.parametrize(("name", "told"), [("INTERVAL=9h", "'9h' is no number"), ("LIGHT=3", "must be true or false")])
def test_a_variable_is_checked_like_its_flag(name: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*f"GPUTOP_{name}".split("="))
    with pytest.raises(UserError, match=f"GPUTOP_{name}: {told}"):
        _parsed()


def test_variables_of_an_alert_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that `exec:` runs is told the incident's host in GPUTOP_HOST, and may call gputop."""
    monkeypatch.setenv("GPUTOP_EVENT", "begin")
    monkeypatch.setenv("GPUTOP_HOST", "node7")
    assert _parsed().host is None


def test_another_file_in_place_of_both(system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system.write_text("light = true\n")
    _write("readonly = true\n")
    (tmp_path / "mine.toml").write_text("interval = 2\n")
    monkeypatch.setenv("GPUTOP_CONFIG", str(tmp_path / "mine.toml"))
    assert {name: one.value for name, one in config.settings().items()} == {"interval": 2}
    monkeypatch.setenv("GPUTOP_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(UserError, match="does not exist"):
        config.settings()


def test_the_command_prints_what_holds_and_where_it_comes_from(
    system: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system.write_text('user = "root"\n[keys]\nquit = "X"\n')
    _write('interval = 0.5\n[alerts]\nsinks = ["bell"]\n')
    monkeypatch.setenv("GPUTOP_LIGHT", "1")
    assert cli.main(["config", "path"]) == cli.main(["config", "validate"]) == cli.main(["config", "print"]) == 0
    path, system_is_fine, user_is_fine, *printed = capsys.readouterr().out.splitlines()
    assert (path, system_is_fine, user_is_fine) == (config.config_path(), f"{system}: fine", f"{path}: fine")
    assert cli.main(["config"]) == 2
    assert "required: path|print|validate" in capsys.readouterr().err
    text = "\n".join(printed)
    assert tomllib.loads(text) == {
        "interval": 0.5, "user": "root", "light": True, "keys": {"quit": "X"}, "alerts": {"sinks": ["bell"]},
    }  # fmt: skip
    assert f"interval = 0.5 # {path}" in " ".join(text.split())
    assert "light = true # GPUTOP_LIGHT" in " ".join(text.split())
    assert "# no-ebpf = false # no eBPF probes" in " ".join(text.split())


@pytest.mark.parametrize("what", ["print", "validate"])
def test_the_command_reads_each_file_once(what: str, system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system.write_text('interval = 0.5\n[keys]\nquit = "X"\n')
    _write('[alerts]\nsinks = ["bell"]\n')
    read: list[str] = []
    content = config.content
    monkeypatch.setattr(config, "content", lambda path: (read.append(path), content(path))[1])
    assert cli.main(["config", what]) == 0
    assert read == [str(system), config.config_path()]


def test_the_command_tells_every_mistake(system: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    system.write_text("colour = 1\n")
    _write('interval = 0.001\n[keys]\nquit = "space"\n[alerts]\nsinks = ["drum"]\n')
    monkeypatch.setenv("GPUTOP_ASCII", "perhaps")
    for what in ("validate", "print"):
        assert cli.main(["config", what]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        for part in ("colour is no flag", "interval = 0.001", "GPUTOP_ASCII=perhaps", "--alert 'drum'", "[keys]"):
            assert part in said.err
        assert len(said.err.splitlines()) == 5


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
    for path in (config.config_path(), screenstate.path()):
        Path(path).parent.mkdir(parents=True)
        os.mkfifo(path)
    with pytest.raises(UserError, match="no regular file"):
        config.settings()
    assert screenstate.load() == screenstate.Saved()


def test_dev_null_is_an_empty_file() -> None:
    for path in (config.config_path(), screenstate.path()):
        Path(path).parent.mkdir(parents=True)
        Path(path).symlink_to(os.devnull)
    assert config.settings() == {}
    assert screenstate.load() == screenstate.Saved()


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
    kept = screenstate.Saved(120, "cpu", True, False, "gputop-light")
    screenstate.save(kept)
    assert screenstate.load() == kept


@pytest.mark.parametrize("data", [b"", b"[]", b'{"window_s": 1}', b'{"sort": 3}', b'{"sort": "\xff"}', b'{"x": ' + b"[" * 3000, bytes(50)])
def test_a_broken_state_is_a_new_screen(data: bytes) -> None:
    path = Path(screenstate.path())
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert screenstate.load() == screenstate.Saved()
