"""What `sudo gputop` does as root and what as the user who typed it, with whole programs and a real user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.model.frame import Frame
from gputop.recording.chunks import Decoder
from gputop.recording.reader import Recording
from gputop.system.privilege import CAP_PERFMON
from tests.pty.terminal import Terminal
from tests.require import require
from tests.wait import PATIENCE_S, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be others")

USER = 65534
GPUTOP = [sys.executable, "-m", "gputop"]
PROBING = 3 << CAP_PERFMON


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the user's."""
    path = Path(tempfile.mkdtemp(prefix="gt-", dir="/tmp"))
    os.chown(path, USER, USER)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def roots_home(tmp_path: Path) -> Path:
    """A directory with gputop in it, that only root can read."""
    path = tmp_path / "root"
    path.mkdir(mode=0o700)
    shutil.copytree(Path(__file__).parents[2] / "gputop", path / "gputop", ignore=shutil.ignore_patterns("__pycache__"))
    return path


def by_sudo(**more: str) -> dict[str, str]:
    """The environment that sudo leaves: it names the user who typed."""
    return {**os.environ, "SUDO_UID": str(USER), "SUDO_GID": str(USER), "PYTHONPATH": str(Path(__file__).parents[2]), **more}


def status(pid: int) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)


def children(pid: int) -> list[int]:
    return [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]


def is_the_user(pid: int, kept: int = 0) -> bool:
    said = status(pid)
    ids = {int(word) for name in ("Uid", "Gid") for word in said[name].split()}
    rights = {name: int(said[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")}
    return ids == {USER} and "0" not in said["Groups"].split() and rights == {"CapPrm": kept, "CapEff": kept, "CapInh": 0, "CapAmb": 0}


@pytest.mark.parametrize("probes", ["ebpf", "none"])
def test_a_recorder_and_its_collector_become_the_user(home: Path, probes: str) -> None:
    """With the probes loaded two capabilities are left to the collector, and no program that it starts gets more."""
    if probes == "ebpf":
        require("ebpf")
    command = [*GPUTOP, "record", "-o", "a.gputop", *(["--no-ebpf"] if probes == "none" else [])]
    with subprocess.Popen(command, env=by_sudo(), cwd=home, stderr=subprocess.PIPE, text=True) as process:
        path = home / "a.gputop"
        until(path.exists)
        assert is_the_user(process.pid)
        held = path.stat()
        assert (held.st_uid, held.st_gid, held.st_mode & 0o777) == (USER, USER, 0o600)
        (collector,) = children(process.pid)
        until(lambda: is_the_user(collector, PROBING))
        assert int(status(collector)["CapBnd"], 16) == PROBING
        assert status(collector)["NoNewPrivs"] == "1"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    with Recording(str(path)) as recording:
        states = {state.name: state for frame in recording.frames() for state in frame.sources}
    assert states["ebpf"].state in (("ok", "partial") if probes == "ebpf" else ("off",))


def test_a_collector_goes_on_as_the_user_though_gputop_lies_in_roots_home(roots_home: Path) -> None:
    """It imports what it needs late before it leaves root."""
    command = [*GPUTOP, "collect", "--no-ebpf", "--interval", "0.02", "--frames", "150"]
    env = by_sudo(PYTHONPATH=str(roots_home))
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    states = {state.name: state for item in Decoder().feed(done.stdout) if isinstance(item, Frame) for state in item.sources}
    assert states["procfs"].state == "partial", "it has left root"
    assert states["serving"].state == "ok"
    assert not [state for state in states.values() if "bug" in state.reason or "cannot be loaded" in state.reason]


def test_so_does_a_recorder_with_its_diagnosis(roots_home: Path, home: Path) -> None:
    command = [*GPUTOP, "record", "--no-ebpf", "-o", "a.gputop", "--duration", "2"]
    env = by_sudo(PYTHONPATH=str(roots_home))
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr


def test_and_so_does_a_screen(roots_home: Path, home: Path) -> None:
    env = by_sudo(TERM="xterm-256color", PYTHONPATH=str(roots_home))
    with Terminal([*GPUTOP, "--no-ebpf"], env=env, cwd=home) as terminal:
        terminal.wait_text("LIVE", timeout_s=60)
        for key, shown in (("?", "keys and signs"), ("s", "stacks: ")):
            terminal.press(key, shown)
            terminal.leave(shown)
        assert is_the_user(terminal.process.pid)
        terminal.send("q")
        assert terminal.process.wait(PATIENCE_S) == 0


def test_what_is_recorded_runs_as_the_user(home: Path) -> None:
    command = [*GPUTOP, "record", "--no-ebpf", "-o", "a.gputop", "--", "sh", "-c", "id -u; id -G; echo $HOME; cat /proc/self/status"]
    done = subprocess.run(command, env=by_sudo(HOME="/root"), cwd=home, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    uid, groups, own, *rest = done.stdout.splitlines()
    assert (uid, groups) == (str(USER), str(USER))
    assert own != "/root"
    assert "CapPrm:\t0000000000000000" in rest


def test_a_recorder_writes_only_where_the_user_may(home: Path) -> None:
    """Root follows no link and writes into no directory of another user."""
    (home / "into").symlink_to("/etc")
    for output in ("/etc/gputop-of-a-stranger.gputop", "into/gputop-of-a-stranger.gputop"):
        command = [*GPUTOP, "record", "--no-ebpf", "-o", output, "--duration", "1"]
        done = subprocess.run(command, env=by_sudo(), cwd=home, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 1
        assert "Permission denied" in done.stderr
        assert done.stderr.count("\n") == 1
    assert not Path("/etc/gputop-of-a-stranger.gputop").exists()


def test_what_the_user_may_not_read_any_more_has_its_reason(home: Path) -> None:
    """The I/O of root's processes was read until gputop left root."""
    command = [*GPUTOP, "record", "--no-ebpf", "-o", "a.gputop", "--duration", "4"]
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        subprocess.run(command, env=by_sudo(), cwd=home, capture_output=True, timeout=PATIENCE_S, check=True)
        other.kill()
    with Recording(str(home / "a.gputop")) as recording:
        told = [state for frame in recording.frames() for state in frame.sources if state.name == "procfs"][-1]
    said = " ".join([told.reason, *told.detail.values()])
    assert "other users" in said, told


@pytest.mark.parametrize("kind", ["csv", "sqlite", "perfetto"])
def test_an_export_of_roots_recording_is_the_users(home: Path, kind: str) -> None:
    secret = home / "secret"
    secret.mkdir(mode=0o700)
    record = [*GPUTOP, "record", "--no-ebpf", "-o", secret / "a.gputop", "--duration", "1"]
    subprocess.run(record, timeout=PATIENCE_S, check=True, capture_output=True)
    command = [*GPUTOP, "export", str(secret / "a.gputop"), "--to", kind, "-o", "out"]
    done = subprocess.run(command, env=by_sudo(), cwd=home, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.lstat().st_uid for path in (home / "out", *(home / "out").rglob("*"))} == {USER}


def test_the_screen_becomes_the_user_and_goes_on(home: Path) -> None:
    """Each screen opens where Python is in root's home, from which nothing can be loaded after root is left."""
    with Terminal([*GPUTOP, "--no-ebpf"], env=by_sudo(TERM="xterm-256color"), cwd=home) as terminal:
        terminal.wait_text("GPU", timeout_s=60)
        until(lambda: is_the_user(terminal.process.pid))
        terminal.wait_text("self ", "% CPU")  # its own cost, of which the first second of a collector has none
        for key, shown in (("?", "keys and signs"), ("s", "stacks: ")):
            terminal.press(key, shown)
            terminal.leave(shown)
        terminal.send("R")
        until(lambda: list(home.glob("*.gputop")))
        (saved,) = home.glob("*.gputop")
        assert saved.stat().st_uid == USER
        terminal.send("q")
        assert terminal.exit_code() == 0
    assert "bug" not in terminal.text()


def test_a_screen_that_is_left_at_once_ends_though_its_collector_is_still_root(home: Path) -> None:
    require("ebpf")
    with Terminal([*GPUTOP], env=by_sudo(TERM="xterm-256color"), cwd=home) as terminal:
        terminal.wait_text("GPU", timeout_s=60)
        terminal.send("q")
        assert terminal.exit_code() == 0


def test_a_script_whose_loader_is_swept_runs_as_the_user(home: Path) -> None:
    (home / "train.py").write_text("import os\nraise SystemExit(f'{os.getuid()} {os.getgid()}')\n")
    command = [*GPUTOP, "loader", "train.py:any"]
    done = subprocess.run(command, env=by_sudo(), cwd=home, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert f"ended itself with '{USER} {USER}'" in done.stderr
