"""`gputop demo` leaves nothing behind, and what it needs of the host is made and given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop.demo import resources
from gputop.system.errors import UserError
from tests.wait import PATIENCE_S


def _members(root: int) -> set[int]:
    """Living descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found, more = {root}, {root}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return found - {root}


def _wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nobody_is_left(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "gputop", "demo", "queue-full-healthy", "--plain", "--no-ebpf"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as demo:
        try:
            # collector, stage, trainer and its four workers
            _wait_for(lambda: len(_members(demo.pid)) >= 7, "the stage did not fill")
            family = {pid: Path(f"/proc/{pid}/stat").read_text().split()[21] for pid in _members(demo.pid)}
        finally:
            demo.send_signal(number)
        demo.wait(PATIENCE_S)
    _wait_for(lambda: not any(_lives(pid, born) for pid, born in family.items()), f"left after {number.name}")


def _lives(pid: int, born: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.split()[21] == born and stat.rpartition(")")[2].split()[0] != "Z"


def test_plain_prints_verdicts_marked_as_simulated() -> None:
    for duration_s in ("6", "30"):  # on a busy machine the stage fills later
        command = [sys.executable, "-m", "gputop", "demo", "memcpy-bottleneck", "--plain", "--duration", duration_s, "--no-ebpf"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        if lines := done.stdout.splitlines():
            break
    assert lines
    assert all(line.endswith("[SIMULATED GPU]") for line in lines)
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["no-such"], ["--duration", "1"], ["--duration", "x"]])
def test_wrong_usage_is_said_in_a_line(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gputop", "demo", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_slow_disk_reads_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer kernels let a tmpfs be read directly, too."""
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no tmpfs at /dev/shm")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/dev/shm")
    descriptor = resources.make_file()
    try:
        assert os.fstat(descriptor).st_dev != os.stat("/dev/shm").st_dev
        assert os.fstat(descriptor).st_size == resources.FILE_BYTES
    finally:
        os.close(descriptor)


def test_a_full_disk_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def full(descriptor: int) -> None:
        opened.append(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resources, "_fill", full)
    with pytest.raises(UserError, match="set TMPDIR"):
        resources.make_file()
    assert opened
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
