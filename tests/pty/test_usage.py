"""Wrong usage and odd environments: one line on standard error, the right exit code, no traceback."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from gputop.cli import COMMANDS, make_parser
from gputop.commands.replay import sample
from tests.pty.conftest import GPUTOP, Launch
from tests.wait import PATIENCE_S

GONE_PID = "4194305"  # above any pid_max the kernel allows


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """gputop without any terminal."""
    return subprocess.run(
        [GPUTOP, *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        (["--no-such-flag"], {2}),
        (["no-such-command"], {2}),
        (["--interval", "fast"], {2}),
        (["--interval", "0.001"], {2}),
        (["--interval", "61"], {2}),
        (["--interval", "nan"], {2}),
        (["--gpu", "x"], {2}),
        (["--pid", GONE_PID], {1, 2}),
        (["--user", "nobody-of-that-name"], {1, 2}),
        (["--once", "--pid", GONE_PID], {1, 2}),
        (["--once", "--host", ""], {2}),
        ([], {1, 2}),
    ],
    ids=lambda value: " ".join(value) or "no terminal" if isinstance(value, list) else "",
)
def test_said_in_one_line(env: dict[str, str], arguments: list[str], codes: set[int]) -> None:
    done = run(env, *arguments)
    assert done.returncode in codes
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("gputop: ")


@pytest.mark.parametrize(("flag", "told"), [("--pid", "'-5' is no process id"), ("--interval", "-5 s is outside")])
def test_a_negative_number_is_a_value_that_is_wrong(env: dict[str, str], flag: str, told: str) -> None:
    assert told in run(env, flag, "-5").stderr


@pytest.mark.parametrize(("kind", "told"), [("dumb", "TERM=dumb cannot show"), ("", "whose TERM is not set cannot show")])
def test_dumb_terminal_is_told_so(launch: Launch, kind: str, told: str) -> None:
    terminal = launch(env={"TERM": kind})
    assert terminal.exit_code() in (1, 2)
    assert told in terminal.text()
    assert "\x1b" not in terminal.text()
    assert len([line for line in terminal.text().splitlines() if line]) == 1


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("exlain", "explain"), ("help recrod", "record"), ("hepl", "help"), ("demo slow-dsk", "slow-disk"),
     ("record --duratoin 5", "--duration"), ("--onec", "--once"), ("schema snapshto", "snapshot"),
     ("export a --to perfeto -o b", "perfetto"),
     ("files gputop-recorder.service", "gputop-record.service"), ("files gputop.jso", "gputop.json")],
)  # fmt: skip
def test_what_is_spelled_alike_is_named(env: dict[str, str], wrong: str, meant: str) -> None:
    done = run(env, *wrong.split())
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"did you mean {meant}?" in line


@pytest.mark.parametrize("wrong", ["zzzz", "--zzzz", "demo zzzz"])
def test_nothing_is_named_where_nothing_is_alike(env: dict[str, str], wrong: str) -> None:
    assert "did you mean" not in run(env, *wrong.split()).stderr


def test_help_may_be_asked_for_as_a_command(env: dict[str, str]) -> None:
    assert run(env, "help").stdout == run(env, "--help").stdout
    assert run(env, "help", "record").stdout == run(env, "record", "--help").stdout != ""


def test_a_replay_without_a_terminal_names_what_prints(env: dict[str, str]) -> None:
    done = run(env, "replay", sample())
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert f"gputop explain {shlex.quote(sample())}" in done.stderr


def test_a_recording_and_an_export_end_with_what_comes_next(env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "a run.gputop"
    recorded = run(env, "record", "--no-ebpf", "-o", str(path), "--duration", "2").stderr.splitlines()[-1]
    next_command = shlex.split(recorded[recorded.index("gputop explain") :])
    assert next_command == ["gputop", "explain", str(path)]
    assert run(env, *next_command[1:]).returncode == 0
    for form in ("csv", "sqlite", "html", "perfetto"):
        out = tmp_path / f"out of.{form}"
        told = run(env, "export", str(path), "--to", form, "-o", str(out)).stderr.splitlines()[-1]
        assert str(out) in told
        opened = {"csv": "spreadsheet", "sqlite": f"sqlite3 {shlex.quote(str(out))}", "html": "browser", "perfetto": "ui.perfetto.dev"}
        assert opened[form] in told


def test_help_fits_a_screen(env: dict[str, str]) -> None:
    done = run(env, "--help")
    assert done.returncode == 0
    assert "--once" in done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) <= 24, "gputop --help fits a screen: name a command that is seldom needed in gputop.cli.SELDOM"
    assert max(map(len, lines)) <= 80
    assert [name for name in COMMANDS if name not in done.stdout] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_short_and_has_its_flags(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser, _ = make_parser(command)
    text = parser.format_help()
    assert len(text.splitlines()) <= 36
    flags = [flag for action in parser._actions[1:] for flag in action.option_strings]
    assert [flag for flag in flags if flag not in text] == []


@pytest.mark.parametrize("end", [">/dev/full", ">&-"])
@pytest.mark.parametrize("arguments", [
    "--help", "record --help", "-V", "--once", "--json", "--once --json", "doctor", "explain --since 1ms", "stacks 1 --json",
    "config print", "collect --frames 1",
])  # fmt: skip
def test_output_that_is_full_or_closed_is_said(env: dict[str, str], arguments: str, end: str) -> None:
    done = subprocess.run(
        f"{GPUTOP} {arguments} {end}", shell=True, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    said = done.stderr.splitlines()
    assert done.returncode == 1
    assert said[-1].startswith("gputop: cannot write ")
    assert "bug" not in done.stderr


@pytest.mark.parametrize(("end", "code", "told"), [("<&-", 1, "this is no terminal"), ("--once --json 2>&-", 0, "")])
def test_a_closed_stream_is_an_empty_one(env: dict[str, str], end: str, code: int, told: str) -> None:
    done = subprocess.run(f"{GPUTOP} {end}", shell=True, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code
    assert told in done.stderr


def test_a_closed_pipe_is_no_error(env: dict[str, str]) -> None:
    done = subprocess.run(
        f"{GPUTOP} --json | head -n 2", shell=True, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""
