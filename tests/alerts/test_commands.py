"""Alerts of the commands that follow a stream: live on its screen, record beside a dead webhook."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from gputop.demo.stage import staged
from gputop.recording.reader import Recording
from tests.alerts.test_sinks import Raw, dead  # noqa: F401 - a fixture
from tests.pty.conftest import clean
from tests.wait import PATIENCE_S, at_this_load, until

GPUTOP = [sys.executable, "-m", "gputop"]
LATE_NS = 100_900_000  # ns between two ticks, 99 % of them, as `make bench` holds it
ROOT = Path(__file__).parents[2]


def test_live_tells_through_its_own_screen(tmp_path: Path, dead: int) -> None:  # noqa: F811
    """A webhook that cannot be reached is told there, and keeps neither the bell nor a notification nor a command; afterwards the terminal
    is as it was."""
    with staged("cpu-contention", 2 * PATIENCE_S) as environ:
        env = clean(environ, tmp_path) | {"PYTHONPATH": str(ROOT)}
        names = f"http://127.0.0.1:{dead}/secret", "bell", "desktop", f"exec:sh -c 'cat >> {tmp_path}/told'"
        sinks = [word for name in names for word in ("--alert", name)]
        with Raw([*GPUTOP, "--no-ebpf", *sinks], env=env, columns=120, lines=40, cwd=tmp_path) as terminal:
            until((tmp_path / "told").exists)
            terminal.wait_for(lambda: b"\x1b]9;\xe2\x96\xb2" in terminal.got and b"\a" in terminal.got, "bell and notification")
            terminal.wait_for(lambda: b"alert not sent to http://127.0.0.1" in terminal.got, "the note")
            terminal.send("q")
            assert terminal.exit_code() == 0
            assert b"secret" not in terminal.got
            assert terminal.termios_now() == terminal.termios_before


@pytest.mark.soak
def test_recording_goes_on_at_its_beat_beside_a_dead_webhook(tmp_path: Path, dead: int) -> None:  # noqa: F811
    path = tmp_path / "run.gputop"
    with staged("cpu-contention", 60) as environ:
        flags = ["--no-ebpf", "--duration", "12s", "-o", str(path), "--alert-on", "low", "--alert", f"http://127.0.0.1:{dead}/secret"]
        done = subprocess.run([*GPUTOP, "record", *flags], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "alert not sent to http://127.0.0.1: " in done.stderr
    assert "secret" not in done.stderr
    with Recording(str(path)) as recording:
        frames = list(recording.frames())
    gaps = sorted(later.t_ns - earlier.t_ns for earlier, later in pairwise(frames))
    assert len(frames) >= 80
    assert gaps[len(gaps) * 9 // 10] < at_this_load(2 * LATE_NS), "a busy machine may delay a tick; a webhook of 2 s would delay 20"
    assert frames[-1].t_ns - frames[0].t_ns > 11e9


@pytest.mark.parametrize("command", ["record", "watch", "live"])
def test_a_wrong_sink_is_told_before_anything_starts(tmp_path: Path, command: str) -> None:
    argv = [*GPUTOP, command, "--alert", "pager"]
    with Raw(argv, env=clean({"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}, tmp_path), cwd=tmp_path) as terminal:
        assert terminal.exit_code() == 2
        assert b"write bell, desktop" in terminal.got
    assert list(tmp_path.glob("*.gputop")) == []
