"""`gputop record --host LIST -o FOLDER`: a file a host, whatever happens to one; and the folder played as a fleet."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputop.fleet.link import UP
from gputop.fleet.links import Links
from gputop.fleet.targets import RecordingsFolder
from gputop.recording.reader import Recording
from gputop.stream.played import parts_of
from gputop.system.errors import UserError
from tests.fleet.fakes import FakeSsh, ssh
from tests.wait import PATIENCE_S, until

assert ssh  # a fixture
GPUTOP = f"{sys.executable} -m gputop"
REAL = f"exec {GPUTOP}"


def record(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gputop", "record", "--no-ebpf", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gaps(path: Path) -> list[str]:
    """Why frames are missing; other markers are of who else works on this machine."""
    with Recording(str(path)) as recording:
        return [mark.gap_reason for mark in recording.marks if mark.gap_reason]


def test_each_host_has_its_file_and_they_are_played_together(ssh: FakeSsh, tmp_path: Path) -> None:
    ssh.says("node1", f'{REAL} "$@"')
    ssh.says("node2", f'[ -e "$D/once" ] || {{ touch "$D/once"; timeout --foreground 3 {GPUTOP} "$@"; sleep 1; exit 9; }}; {REAL} "$@"')
    ssh.says("dead", "echo 'ssh: connect to host dead: No route to host' >&2; exit 255")
    folder = tmp_path / "run"
    process = record("--host", "node[1-2],dead", "-o", str(folder))
    again = folder / "node2.gputop"

    def comes_back() -> bool:
        return again.exists() and "the link to it was lost" in gaps(again)

    try:
        until(lambda: process.poll() is not None or comes_back())
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "dead: ssh: connect to host dead: No route to host; it is tried again" in err
    assert "node2 answers again" in err
    assert "recorded 2 hosts of 3" in err
    assert {path.name for path in folder.iterdir()} == {"node1.gputop", "node2.gputop"}
    assert folder.stat().st_mode & 0o77 == 0
    for path in folder.iterdir():
        with Recording(str(path)) as recording:
            frames = list(recording.frames())
            assert not recording.problem
        times = [frame.t_ns for frame in frames]
        assert times == sorted(set(times))
        assert len(times) > 10
    assert "the link to it was lost" in gaps(again)
    assert gaps(folder / "node1.gputop") == []

    links = Links(RecordingsFolder(str(folder)).targets())
    try:
        until(lambda: all(node.state == UP for node in links.poll().values()))
        skews = [node.skew_s or 0.0 for node in links.poll().values()]
        assert max(map(abs, skews)) < 1.0
        assert list(links.poll()) == ["node1", "node2"]
    finally:
        links.close()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--host", "a,b"], "name the folder"),
        (["--host", "a,b", "-o", "x", "--", "true"], "a command runs with one --host"),
        (["--host", "a,b", "-o", "x", "--keep", "1d", "--max-size", "64M"], "--keep is for one host"),
        (["--host", "a,b", "-o", "x", "--alert", "bell"], "--alert is for one machine"),
        (["--host", "a,-b", "-o", "x"], "no name of a machine"),
        (["--hosts", "/none"], "No such file"),
    ],
)
def test_what_does_not_fit_many_hosts_is_told_in_a_line(words: list[str], why: str) -> None:
    _, err = (process := record(*words)).communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert why in err
    assert len(err.splitlines()) == 1


def test_a_folder_without_recordings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no recordings"):
        RecordingsFolder(str(tmp_path))


def test_the_files_of_a_rotation_are_one_host(tmp_path: Path) -> None:
    for name in ("a.gputop", "a.2.gputop", "a.10.gputop", "b.gputop", "ab.2.gputop"):
        (tmp_path / name).touch()
    names = [Path(path).name for path in parts_of(str(tmp_path / "a.10.gputop"))]
    assert names == ["a.gputop", "a.2.gputop", "a.10.gputop"]
    assert parts_of(str(tmp_path / "ab.2.gputop")) == [str(tmp_path / "ab.2.gputop")]
