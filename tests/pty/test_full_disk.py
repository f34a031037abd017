"""`r` and `R` on a full disk: a line says it, and the screen goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.recording.reader import Recording
from tests.pty.conftest import Launch


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """The folder that `launch` starts in is a disk of 256 KB."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot mount")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def fill(path: Path) -> None:
    """Fill the disk."""
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=4096"], capture_output=True, check=False)


def frames_in(folder: Path) -> int:
    """Frames of the recording in ``folder``."""
    (path,) = folder.glob("*.gputop")
    with Recording(str(path)) as recording:
        return len(list(recording.frames()))


def test_a_disk_that_is_full_from_the_beginning(launch: Launch, small: Path) -> None:
    terminal = launch("--no-ebpf")
    terminal.wait_text("LIVE", "driver")
    fill(small / "other")
    terminal.send("r")
    terminal.wait_text("No space left on device")
    terminal.wait_for(lambda: "No space left" not in terminal.text(), "the keys again")
    terminal.send("R")
    terminal.wait_text("No space left on device")
    assert not list(small.glob("*.gputop")), "nothing is left of what could not be written"
    (small / "other").unlink()
    terminal.wait_for(lambda: "No space left" not in terminal.text(), "the keys again")
    terminal.send("R")
    terminal.wait_text("saved")
    terminal.send("q")
    assert terminal.exit_code() == 0


def test_a_disk_that_gets_full_while_it_is_recorded(launch: Launch, small: Path) -> None:
    terminal = launch("--no-ebpf")
    terminal.wait_text("LIVE", "driver")
    terminal.send("r")
    terminal.wait_text("REC")
    terminal.wait_for(lambda: frames_in(small), "some frames are written")
    fill(small / "other")
    terminal.wait_text("No space left on device")
    terminal.wait_text("REC ENDED")
    assert frames_in(small)
    (small / "other").unlink()
    terminal.send("r")
    terminal.wait_text("● REC")
    terminal.send("q")
    assert terminal.exit_code() == 0
