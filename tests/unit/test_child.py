"""A child that writes the stream: what it says last is told, however much it says before, and nothing of it stays open."""

from __future__ import annotations

import errno
import signal
import subprocess
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gputop.stream.child import ChildStream
from gputop.system import crash
from gputop.system.errors import NO_MORE_THREADS, UserError
from tests.streams import items_of
from tests.wait import PATIENCE_S


def _ended(script: str) -> str:
    stream = ChildStream(["sh", "-c", script])
    try:
        assert list(items_of(stream)) == []
        return stream.ending()
    finally:
        stream.close()


def test_the_reason_stands_behind_a_banner() -> None:
    assert _ended("i=0; while [ $i -lt 90 ]; do echo 'Authorized use only, all of it is watched' >&2; i=$((i+1)); done;"
                  "echo 'Permission denied (publickey).' >&2; exit 255") == "Permission denied (publickey)."  # fmt: skip


def test_a_child_that_says_more_than_a_pipe_holds_is_not_held_up() -> None:
    assert _ended("head -c 300000 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo end >&2; exit 3") == "end"


def test_one_without_a_word_is_told_by_its_exit_code() -> None:
    assert _ended("exit 3") == "ended with exit code 3"
    assert _ended("kill -9 $$") == "killed by signal 9"
    assert _ended("echo Welcome") == "it ended, and wrote no stream of gputop"


def test_a_machine_without_gputop_is_told_what_it_lacks() -> None:
    told = _ended("echo 'bash: gputop: command not found' >&2; exit 127")
    assert told == "bash: gputop: command not found; install it there, into the PATH that commands over ssh have"


@pytest.mark.parametrize("script", ["exec sleep 60", "exit 0"])
def test_closing_it_closes_its_pipes(script: str) -> None:
    stream = ChildStream(["sh", "-c", script])
    stream.close()
    stream._listening.join(PATIENCE_S)
    assert stream._child.stdout is not None
    assert stream._child.stderr is not None
    assert (stream._child.stdout.closed, stream._child.stderr.closed) == (True, True)


def test_one_that_writes_no_more_is_not_waited_for_to_its_end() -> None:
    assert _ended("exec sleep 60 >&- 2>&-") == "it has closed its output"


def test_one_that_the_kernel_keeps_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ChildStream(["sleep", "60"])
    with monkeypatch.context() as patch:
        patch.setattr(stream._child, "send_signal", lambda _: None)
        stream.close()
    assert stream._child.poll() is None
    stream.close()
    assert stream._child.poll() == -signal.SIGTERM


def test_where_there_can_be_no_child_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(UserError, match="no more processes or threads"):
        ChildStream(["true"])


def test_a_program_that_is_not_there_or_not_to_be_run_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="cannot run ssh: No such file or directory"):
        ChildStream(["ssh", "node7"])
    (tmp_path / "ssh").touch(0o600)
    with pytest.raises(UserError, match="cannot run ssh: Permission denied"):
        ChildStream(["ssh", "node7"])


def test_where_there_can_be_no_thread_its_child_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            children.append(self)

    def refuse(_thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", Kept)
    monkeypatch.setattr(Thread, "start", refuse)
    with pytest.raises(UserError, match="no more processes or threads"):
        ChildStream(["sleep", "60"])
    assert [child.poll() for child in children] == [-signal.SIGTERM]


def test_that_there_can_be_no_thread_is_no_bug() -> None:
    assert crash.log(RuntimeError("can't start new thread")) == NO_MORE_THREADS
    assert crash.log(RuntimeError("another")).startswith("this is a bug")
