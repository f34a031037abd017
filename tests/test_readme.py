"""Every command that the README prints runs as printed; tests/test_docs.py reads its other blocks, and those of docs/.

Commands of gputop run in a folder of their own, screens in a pseudo-terminal until `q`. What belongs to other programs is named
in `FOREIGN` with the reason why it is not run here, and the files it names must exist.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.cli import COMMANDS, Parser
from gputop.commands import live
from gputop.commands.replay import sample
from gputop.diagnosis.causes import judges
from gputop.system import config
from gputop.tui import bindings
from tests.require import require
from tests.wait import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOREIGN = {
    "uvx": "installs: make wheel-check does, in clean environments",
    "pipx": "the same",
    "claude": "somebody else's agent; tests/agents has clients",
    "sudo": "changes the machine",
    "docker": "needs a container engine",
    "kubectl": "needs a cluster",
    "sbatch": "needs Slurm",
}
ELSEWHERE = ("--host", "--job", "--sudo")
"""Flags that need another machine or may ask for a password."""
SERVES = ("exporter", "watch")
"""Commands that go on until they are told to end."""


def _blocks(language: str) -> Iterator[str]:
    return iter(re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL))


def _commands() -> list[str]:
    lines = (line for block in _blocks("sh") for line in block.splitlines())
    bare = (re.sub(r"\s+# .*$", "", line) for line in lines if line.strip())
    return [re.sub(r'^make run ARGS="(.*)"$', r"gputop \1", line) for line in bare]


OURS = [command for command in _commands() if command.split()[0] == "gputop"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader might stand: recordings, a script, and gputop on the PATH."""
    for name in ("run", "before", "after"):
        shutil.copy(sample(), tmp_path / f"{name}.gputop")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def _environment() -> dict[str, str]:
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}


def _is_screen(command: str) -> bool:
    words = command.split()
    return words[1:2] in ([], ["demo"], ["replay"])


SCRIPT = """import sys, time
if __name__ == "__main__":
    time.sleep(1)
else:
    import warnings
    warnings.simplefilter("ignore")  # torch warns where NumPy is missing
    from torch.utils.data import DataLoader
    train_loader = DataLoader(range(640), batch_size=8)
"""

TRIED = [command for command in OURS if not any(flag in command.split() for flag in ELSEWHERE)]


@pytest.mark.parametrize("command", [command for command in TRIED if command.split()[1:2] and command.split()[1] in SERVES])
def test_a_command_that_goes_on_ends_when_it_is_told(command: str, folder: Path) -> None:
    words, output = shlex.split(command), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = subprocess.Popen(words, cwd=folder, env=_environment(), **output)
    try:
        assert started.stdout is not None
        assert "gputop" in started.stdout.readline()
        started.terminate()
        rest, _ = started.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in rest
        assert started.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    finally:
        started.kill()


@pytest.mark.parametrize("command", [command for command in TRIED if not _is_screen(command) and command.split()[1] not in SERVES])
def test_command_runs_as_printed(command: str, folder: Path) -> None:
    words = shlex.split(command)
    if words[1] == "loader":
        require("torch")
    for i, word in enumerate(words):
        if word == "-o" and words[1] == "record":
            (folder / words[i + 1]).unlink(missing_ok=True)
    done = subprocess.run(words, cwd=folder, env=_environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    allowed = {0, 3} if "--fail-on" in words else {0, 1} if words[1] in ("doctor", "mark", "stacks", "prove") else {0}
    assert done.returncode in allowed, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1
    if "--json" in words:
        json.loads(done.stdout)


@pytest.mark.parametrize("command", [command for command in TRIED if _is_screen(command)])
def test_screen_opens_and_q_leaves_it(command: str, folder: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("gputop", shlex.split(command), _environment())
    seen, deadline, pressed_s = b"", time.monotonic() + PATIENCE_S, 0.0
    try:
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    seen += os.read(terminal, 65536)
                except OSError:  # the other end is closed
                    break
            if any(word in seen for word in (b"util", b"GPU  none", b"No GPU")) and time.monotonic() - pressed_s > 1.0:
                os.write(terminal, b"q")
                pressed_s = time.monotonic()
        assert pressed_s, seen[-2000:]
        ended, status = os.waitpid(pid, 0)
        assert ended == pid
        assert os.waitstatus_to_exitcode(status) == 0, seen[-2000:]
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(terminal)


def test_every_printed_command_is_run_or_excused() -> None:
    strangers = {command.split()[0] for command in _commands()} - {"gputop"}
    assert strangers == set(FOREIGN)
    assert len(OURS) >= 15


def test_it_is_short() -> None:
    """1,600 to 1,900 words, and no paragraph, list item or table cell over 80."""
    assert 1600 <= len(README.split()) <= 1900, "README.md has 1,600 to 1,900 words: what is added takes the place of others"
    prose = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"\n\n|\n- |\n\||\|", prose)
    assert [part for part in parts if len(part.split()) > 80] == []


def test_the_changelog_of_a_first_release_is_short() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 48, "CHANGELOG.md has 48 lines until the first release: what is added takes the place of others"


def test_files_that_it_names_exist() -> None:
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    named = re.findall(r"\bpackaging/[\w.-]+", README)
    assert [path for path in links + named if not (ROOT / path).exists()] == []


def test_commands_of_gputop_in_other_programs_lines_exist() -> None:
    inside = re.findall(r"(?:^| )gputop ((?!-)[a-z]+)", "\n".join(_commands()), re.MULTILINE)
    assert set(inside) - {"gputop"} <= set(COMMANDS)


def test_every_cause_is_in_the_table() -> None:
    table = README.partition("## Causes")[2].partition("\n## ")[0]
    assert [judge.cause for judge in judges() if f"`{judge.cause}`" not in table] == []


def test_the_configuration_it_shows_is_understood() -> None:
    (text,) = _blocks("toml")
    path = Path(config.config_path())
    path.parent.mkdir(parents=True)
    path.write_text(text)
    parser = Parser()
    live.add_arguments(parser)
    config.apply(parser, strict=True)
    assert parser.parse_args([]).interval == 0.2
    known = {binding.id for binding in [*bindings.LIVE, *bindings.EVERYWHERE]}
    assert set(config.key_map()) <= known
