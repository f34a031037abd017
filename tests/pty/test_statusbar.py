"""The line in a real tmux, by the lines of docs/statusbar.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.pty.conftest import Launch
from tests.wait import PATIENCE_S, until

DOCS = (Path(__file__).parents[2] / "docs" / "statusbar.md").read_text(encoding="utf-8")
INTERVAL = "0.1357"  # by which the processes of this test are known


def lines_running() -> int:
    """How many `gputop --line` of this test run."""
    commands = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return sum("--line" in words and INTERVAL in words for words in commands)


@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux: apt install tmux")
def test_tmux_shows_the_line_and_takes_it_along(launch: Launch, env: dict[str, str], tmp_path: Path) -> None:
    (config,) = re.findall(r"^# ~/.tmux.conf\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)
    command = f"{Path(sys.executable).parent / 'gputop'} --line --no-ebpf --interval {INTERVAL}"
    (tmp_path / "tmux.conf").write_text(config.replace("gputop --line", command))
    tmux = ["-S", str(tmp_path / "socket"), "-f", str(tmp_path / "tmux.conf")]
    terminal = launch(*tmux, "new-session", "cat", command="tmux", columns=120, lines=8)
    until(lambda: re.search(r"[…–✓▲] .*2 GPUs \d+%.* \d\d:\d\d", terminal.text()))
    assert lines_running() == 1
    subprocess.run(["tmux", *tmux, "kill-server"], env=env, check=True, timeout=PATIENCE_S)
    until(lambda: not lines_running())
