"""Markers find recorders in other namespaces: containers, a /tmp of one's own, a network of one's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputop import cli
from gputop.sources.marks import elsewhere, sockets
from tests.recording.test_record import runtime as runtime

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare, for namespaces")

_LISTENS = """
import time
from gputop.sources import Settings
from gputop.sources.marks import MarksSource
from tests.recording.test_record import read_marks
source = MarksSource(Settings())
source.open()
print("listening", flush=True)
heard = []
while not heard:
    heard = read_marks(source)
print(heard[0], flush=True)
"""


@contextmanager
def recorder(folder: Path, *namespaces: str) -> Iterator[subprocess.Popen[str]]:
    """One that hears in a runtime directory ``folder``, which only it sees where it has a mount namespace."""
    script = f'mkdir -p -m 700 "$0"; {"mount -t tmpfs -o mode=700 own $0;" if "--mount" in namespaces else ""} exec "$1" -c "$2"'
    command = ["unshare", *namespaces, "sh", "-c", script, str(folder), sys.executable, _LISTENS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)}) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("namespaces", [["--mount"], ["--net"], ["--mount", "--net"]], ids=" ".join)
def test_a_recorder_in_namespaces_of_its_own_hears_a_marker(tmp_path: Path, namespaces: list[str]) -> None:
    with recorder(tmp_path / "own", *namespaces) as process:
        assert cli.main(["mark", "epoch", "3"]) == 0
        assert process.stdout is not None
        assert process.stdout.readline() == "epoch 3\n"


def test_a_recorder_that_is_found_in_two_ways_hears_a_marker_once(runtime: Path) -> None:
    with recorder(runtime, "--net"):
        (there,), ((here, descriptor),) = elsewhere(frozenset({0})), sockets(frozenset({0}))
        os.close(descriptor)
        assert there.endswith(here)
        assert there != here


def test_what_a_recorder_left_elsewhere_is_not_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorder(tmp_path / "own", "--net"):
        monkeypatch.setattr("socket.socket.connect", _refused)
        assert cli.main(["mark", "x"]) == 1
        (there,) = elsewhere(frozenset({os.geteuid()}))
        assert os.path.lexists(there)


def _refused(*_: object) -> None:
    raise ConnectionRefusedError
