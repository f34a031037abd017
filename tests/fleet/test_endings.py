"""Whatever follows a stream can be ended: by its time, by a signal, and at once by another one, however fast a node sends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop.recording.reader import Recording
from gputop.system import ending
from gputop.system.ending import AGAIN_S, Ending
from tests.fleet.fakes import FakeSsh, ssh  # noqa: F401 - a fixture
from tests.wait import PATIENCE_S, until
from tests.workloads.environment import ROOT

GPUTOP = [sys.executable, "-m", "gputop"]
FLOOD = f"cd {ROOT}; exec {sys.executable} -m tests.fleet.flood \"$@\""


@pytest.fixture
def floods(ssh: FakeSsh) -> FakeSsh:  # noqa: F811
    """The hosts node1 and node2 flood whoever reads them."""
    ssh.says("node1", FLOOD)
    ssh.says("node2", FLOOD)
    return ssh


def started(*arguments: str, errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("wb") as file:
        return subprocess.Popen([*GPUTOP, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, cwd=ROOT)


def children_of(pid: int) -> list[int]:
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


@pytest.mark.parametrize("command", ["watch", "record"])
def test_a_flood_ends_with_the_duration(floods: FakeSsh, command: str) -> None:
    path = floods.folder / "run.gputop"
    words = ["-o", str(path)] if command == "record" else []
    child = started(command, "--host", "node1", "--duration", "1s", *words, errors=floods.folder / "err")
    try:
        # A stream that floods is ended with its reason, and then a recording is incomplete.
        assert child.wait(PATIENCE_S) in ((0,) if command == "watch" else (0, 1))
    finally:
        child.kill()
    if command == "record":
        with Recording(str(path)) as recording:
            assert not recording.growing
            assert recording.end_ns - recording.start_ns <= 1_000_000_000


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
@pytest.mark.parametrize("arguments", [
    ["watch", "--host", "node1"], ["record", "--host", "node1", "-o", "run"], ["record", "--host", "node[1-2]", "-o", "runs"],
    ["--json", "--host", "node1"], ["--json", "--host", "node[1-2]"], ["--line", "--host", "node1"],
])  # fmt: skip
def test_a_flood_ends_with_a_signal(floods: FakeSsh, arguments: list[str], number: signal.Signals) -> None:
    errors, path = floods.folder / "err", floods.folder / arguments[-1]
    words = [*arguments[:-1], str(path)] if "-o" in arguments else arguments
    child = started(*words, errors=errors)
    try:
        until(lambda: path.exists() if "-o" in words else children_of(child.pid))
        child.send_signal(number)
        child.wait(PATIENCE_S)
    finally:
        child.kill()
    assert "Traceback" not in errors.read_text()
    if "-o" in words and path.is_file():
        with Recording(str(path)) as recording:
            assert not recording.growing, "it was ended, not cut"


def test_a_second_signal_ends_at_once() -> None:
    """Whatever the program does meanwhile; one that follows at once is the first one, sent twice."""
    script = (
        "import os, time; from gputop.system.ending import Ending; one = Ending(lambda: os.write(1, b'asked\\n')); one.listen()\n"
        "os.write(1, b'ready\\n')\nwhile True: time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "asked\n"
        asked_s = time.monotonic()
        child.send_signal(signal.SIGINT)
        until(lambda: time.monotonic() > asked_s + 2 * AGAIN_S)
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE_S) == -signal.SIGINT
    finally:
        child.kill()


def test_the_same_signal_twice_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, killed, asked = [10.0], [], []
    monkeypatch.setattr(ending.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ending.signal, "signal", lambda *_: None)
    monkeypatch.setattr(ending.os, "kill", lambda *sent: killed.append(sent))
    one = Ending(lambda: asked.append(1))
    one.take(signal.SIGTERM)
    one.take(signal.SIGTERM)
    assert (one.asked, asked, killed) == (signal.SIGTERM, [1], [])
    now[0] += 2 * AGAIN_S
    one.take(signal.SIGINT)
    assert killed == [(os.getpid(), signal.SIGINT)]
