"""A trainer in a pid and mount namespace of its own, with files that are nowhere else."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop.stacks import sampling
from gputop.stacks.capture import capture
from gputop.stacks.frames import parse
from tests.require import require
from tests.stacks.conftest import PROGRAM, Target
from tests.stacks.test_callers import STUB, THREE_MS
from tests.stacks.test_capture import told_apart
from tests.stubs.build import build
from tests.wait import until

StartCommand = Callable[..., Target]
INSIDE = "/mnt"
"""Where the container has a file system of its own."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare, for namespaces")

_ENTER = """
set -e
mount --make-rprivate /
mount --rbind / "$1"
mount -t tmpfs tmpfs "$1$2"
cp "$3"/* "$1$2"
mount -t proc proc "$1/proc"
shift 3
exec chroot "$DIR" "$@"
"""


@pytest.fixture
def contained(start_command: StartCommand, tmp_path: Path) -> Callable[..., int]:
    """``contained(case, argument)`` runs a case of stalled.py in the container; its pid, as we see it."""
    files, root = tmp_path / "files", tmp_path / "root"
    files.mkdir()
    root.mkdir()
    shutil.copy(PROGRAM, files / "train.py")

    def begin(case: str, *argument: str) -> int:
        inner = sys.executable, f"{INSIDE}/train.py", case, *argument
        shell = "sh", "-c", _ENTER, "sh", str(root), INSIDE, str(files), *inner
        unshare = start_command("env", f"DIR={root}", "unshare", "--pid", "--mount", "--fork", *shell)
        return int(Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()[0])

    begin.files = files  # type: ignore[attr-defined]
    return begin


def test_its_source_is_read_through_its_own_root_and_its_threads_have_our_ids(contained: Callable[..., int]) -> None:
    pid = contained("threaded")
    until(lambda: told_apart(pid))
    stack = next(stack for stack in capture([pid]).stacks if stack.tid == pid)
    inner = parse(stack.python[0])
    assert inner.file == f"{INSIDE}/train.py"
    assert not Path(inner.file).exists()
    assert stack.source[f"{inner.file}:{inner.line}"] == "time.sleep(600)"
    (main,), failed = sampling.watch_main_threads([pid], 1.0)
    assert failed == {}
    assert main.shares[0].place == f"train.py:{inner.line}"


def test_the_line_that_called_its_own_libcuda(contained: Callable[..., int]) -> None:
    require("ebpf", "cc")
    shutil.copy(build(STUB, "libcuda.so.1"), contained.files / "libcuda.so.1")  # type: ignore[attr-defined]
    pid = contained("syncing", f"{INSIDE}/libcuda.so.1")
    found, failed = sampling.watch_cuda_calls([pid], 1.0)
    assert failed == {}
    assert (found[pid][0].place, found[pid][0].call) == (f"train.py:{THREE_MS}", "cuStreamSynchronize")
    assert found[pid][0].calls > 10
