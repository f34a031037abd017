"""Stacks of real stalled processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop.model.frame import Stack
from gputop.stacks import capture as capture_module
from gputop.stacks import interpreter, kernel, pyspy
from gputop.stacks.capture import capture
from gputop.stacks.frames import PythonThread, Unreadable, parse
from gputop.stacks.group import group
from gputop.stacks.lines import text_lines
from tests.require import pythons, pythons_here, require
from tests.stacks.conftest import PROGRAM, Target
from tests.wait import at_this_load, until

Start = Callable[..., Target]
NOBODY = 65534


def main_thread(pid: int, **options: object) -> Stack:
    return next(stack for stack in capture([pid], **options).stacks if stack.pid == pid and stack.tid == pid)  # type: ignore[arg-type]


def await_frame(pid: int, name: str) -> Stack:
    """The main thread's stack once ``name`` is its innermost frame."""
    found: list[Stack] = []

    def there() -> bool:
        found[:] = [main_thread(pid)]
        return bool(found[0].python) and parse(found[0].python[0]).name.endswith(name)

    until(there)
    return found[0]


def await_wait(pid: int, check: Callable[[Stack], bool]) -> Stack:
    """The main thread's stack, all of one moment, once ``check`` holds."""
    found: list[Stack] = []

    def there() -> bool:
        found[:] = [main_thread(pid)]
        return "moment" not in found[0].missing and check(found[0])

    until(there)
    return found[0]


def test_a_sleeping_process_names_its_line_and_its_system_call(start: Start) -> None:
    stack = await_wait(start("sleeping").pid, lambda stack: "nanosleep" in stack.syscall)
    inner = parse(stack.python[0])
    assert inner.name == "sleeping"
    assert stack.source[f"{inner.file}:{inner.line}"] == "time.sleep(600)"
    assert stack.state == "S"
    assert stack.wait.startswith("sleeping: ")
    assert stack.error == ""
    assert stack.thread == "MainThread"


def test_a_lock_between_processes_shows_as_futex(start: Start) -> None:
    stack = await_wait(start("locked").pid, lambda stack: "futex" in stack.syscall and not stack.python[0].startswith("say_ready"))
    assert parse(stack.python[0]).name == "locked"
    assert group([stack])[0].title.endswith("lock.acquire ← locked stalled.py:" + str(parse(stack.python[0]).line))


def test_a_disk_read_names_the_file(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(os.urandom(1 << 20) * 64)
    target = start("reading", str(path))
    stack = await_wait(target.pid, lambda stack: stack.syscall == "read" and stack.state in "SD")
    assert "reading" in [parse(line).name for line in stack.python]
    assert f"read of {path}" in stack.wait


def test_a_pipe_is_named(start: Start) -> None:
    stack = await_wait(start("waiting_for_pipe").pid, lambda stack: stack.syscall == "read")
    assert "read of pipe:[" in stack.wait


def test_in_a_c_extension_the_calling_line_is_shown_and_native_frames_on_request(start: Start) -> None:
    target = start("in_extension")
    stack = await_frame(target.pid, "in_extension")
    assert stack.state == "R"
    assert any("hashlib.pbkdf2_hmac" in text for text in stack.source.values())
    native = capture([target.pid], native=True)
    files = [parse(line).file for line in next(s for s in native.stacks if s.tid == target.pid).python]
    assert native.paused == {target.pid}
    assert any(".so" in file for file in files), files
    assert any(file.endswith("stalled.py") for file in files)


def test_a_stopped_process_is_read_and_named_and_stays_stopped(start: Start) -> None:
    target = start("sleeping")
    await_frame(target.pid, "sleeping")
    os.kill(target.pid, signal.SIGSTOP)
    for native in (False, True):
        stack = await_wait(target.pid, lambda stack: stack.state == "T")
        stack = main_thread(target.pid, native=native)
        assert stack.wait.startswith("stopped")
        assert f"kill -CONT {target.pid}" in stack.wait
        assert parse(stack.python[0]).name == "sleeping"
    assert "is in state T" in stack.missing["native"]


def test_a_zombie_says_so(start: Start) -> None:
    target = start("zombie")
    pid = int(target.said[0])
    until(lambda: main_thread(pid).state == "Z")
    assert main_thread(pid).error.startswith("zombie")


def test_children_that_are_no_python_do_not_spoil_the_rest(start: Start) -> None:
    target = start("tree")
    other, python = map(int, target.said)
    await_frame(python, "sleeping")
    stacks = {stack.pid: stack for stack in capture([target.pid, other, python, 1 << 22]).stacks if stack.tid == stack.pid}
    assert stacks[other].error == "not Python"
    assert "nanosleep" in stacks[other].syscall
    assert stacks[python].error == ""
    assert stacks[1 << 22].error.startswith("gone")


def test_processes_that_end_while_they_are_read() -> None:
    """Thirty short-lived processes: each gives a stack or a reason, none an exception, all in time."""
    processes = [subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({i / 100})"]) for i in range(30)]
    try:
        while any(process.poll() is None for process in processes):
            taken = capture([process.pid for process in processes])
            assert {stack.pid for stack in taken.stacks} == {process.pid for process in processes}
            assert all(stack.python or stack.error for stack in taken.stacks)
            assert taken.took_ns < 5e9
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_file_name_with_control_characters_reaches_no_terminal(start: Start) -> None:
    stack = await_frame(start("named_oddly").pid, "odd")
    assert "\033[31m" in stack.python[0]
    drawn = [line.text for line in text_lines(group([stack]))]
    assert any("red" in text for text in drawn)
    assert not any(ord(char) < 32 for text in drawn for char in text)


def test_a_torn_stack_is_read_again_with_a_pause(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start("sleeping").pid
    await_frame(pid, "sleeping")
    real, calls = pyspy.dump, []

    def torn_unless_paused(pid: int, deadline: float, *, pause: bool = False, native: bool = False) -> list[PythonThread]:
        calls.append(pause)
        if not pause:
            raise Unreadable("torn", "a frame moved")
        return real(pid, deadline, pause=pause, native=native)

    monkeypatch.setattr(capture_module.pyspy, "dump", torn_unless_paused)
    taken = capture([pid])
    assert calls == [False, True]
    assert taken.paused == {pid}
    assert parse(taken.stacks[0].python[0]).name == "sleeping"


def test_one_that_hangs_does_not_hold_the_others(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hung, good = start("sleeping").pid, start("sleeping").pid
    await_frame(good, "sleeping")
    real = pyspy.binary()
    assert real
    script = f'#!/bin/sh\ncase "$*" in *"--pid {hung}"*) exec sleep 30;; *) exec {real} "$@";; esac\n'
    path = tmp_path / "py-spy"
    path.write_text(script)
    path.chmod(0o700)
    monkeypatch.setattr(pyspy, "binary", lambda: str(path))
    for timeout_s in (1.0, 5.0, 20.0):  # on a busy machine the other needs longer, too
        taken = capture([hung, good], timeout_s=timeout_s)
        by_pid = {stack.pid: stack for stack in taken.stacks if stack.tid == stack.pid}
        if by_pid[good].python:
            break
    assert by_pid[hung].error.startswith("timed out")
    assert "nanosleep" in by_pid[hung].syscall, "its kernel side is still there"
    assert parse(by_pid[good].python[0]).name == "sleeping"
    assert taken.took_ns < (timeout_s + at_this_load(9.0)) * 1e9


def test_a_target_that_a_killed_py_spy_left_stopped_goes_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start("sleeping").pid
    await_frame(pid, "sleeping")

    def killed_between_attach_and_detach(pid: int, *_: object, **__: object) -> list[PythonThread]:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: (view := kernel.view_thread(pid, pid)) is not None and view.state == "T")
        raise Unreadable("timeout", "timed out: py-spy did not answer")

    monkeypatch.setattr(capture_module.pyspy, "dump", killed_between_attach_and_detach)
    assert capture([pid], native=True).stacks[0].error.startswith("timed out")
    until(lambda: (view := kernel.view_thread(pid, pid)) is not None and view.state == "S")


def test_native_frames_need_py_spy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start("sleeping").pid
    await_frame(pid, "sleeping")
    monkeypatch.setattr(pyspy, "binary", lambda: None)
    taken = capture([pid], native=True)
    assert parse(taken.stacks[0].python[0]).name == "sleeping"
    assert taken.stacks[0].missing["native"].startswith("py-spy could not take them: py-spy is not installed")
    assert taken.paused == frozenset()


def test_a_build_without_gil_in_which_py_spy_finds_no_frame(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sometimes takes such a build for one it knows."""
    free_threaded = [python for version in pythons_here() if version.endswith("t") for python in pythons(version)]
    for python in free_threaded or [Path(sys.executable)]:
        with monkeypatch.context() as here:
            here.setattr(capture_module.pyspy, "dump", lambda pid, *_, **__: [PythonThread("", pid, 0, False, False, [])])
            if not free_threaded:
                here.setattr(capture_module.interpreter, "is_beyond_py_spy", lambda *_: True)
            pid = start("sleeping", python=str(python)).pid
            until(lambda pid=pid: parse(main_thread(pid).python[0]).name == "sleeping")  # type: ignore[misc]
            assert main_thread(pid, native=True).missing["native"].endswith("which py-spy cannot read")
            here.undo()
            assert interpreter.is_beyond_py_spy(pid) == bool(free_threaded)


def test_native_frames_that_cannot_be_unwound_leave_the_python_ones(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start("sleeping").pid
    await_frame(pid, "sleeping")
    real = pyspy.dump

    def no_native(pid: int, deadline: float, *, pause: bool = False, native: bool = False) -> list[PythonThread]:
        if native:
            raise Unreadable("torn", "UNW_EBADREG: bad register number")
        return real(pid, deadline, pause=pause)

    monkeypatch.setattr(capture_module.pyspy, "dump", no_native)
    (stack,) = capture([pid], native=True).stacks
    assert parse(stack.python[0]).name == "sleeping"
    assert "UNW_EBADREG" in stack.missing["native"]


def test_the_diagnosis_words_come_first(start: Start) -> None:
    pid = start("waiting_for_pipe").pid
    stack = main_thread(pid, waits={pid: "runnable behind fluent-bit for 41 ms"}, incident="7")
    assert stack.wait.startswith("runnable behind fluent-bit for 41 ms")
    assert stack.incident == "7"


def told_apart(pid: int) -> bool:
    """Both threads of `threaded` are there, each with its own kernel side."""
    stacks = {stack.thread: stack for stack in capture([pid]).stacks}
    main, second = stacks.get("MainThread"), next((stack for stack in stacks.values() if "wait_for_lock" in stack.python[0]), None)
    if main is None or second is None:
        return False
    return main.tid == pid and second.tid not in (0, pid) and "futex" in second.syscall and parse(main.python[0]).name == "threaded"


@pytest.mark.parametrize("version", pythons_here())
def test_each_python_gives_both_threads_with_their_kernel_side(start: Start, version: str) -> None:
    require(f"python{version}")
    for python in pythons(version):
        pid = start("threaded", python=str(python)).pid
        until(lambda pid=pid: told_apart(pid))  # type: ignore[misc]


@pytest.mark.parametrize("version", [version for version in pythons_here() if version not in ("3.6", "3.7")])
def test_each_python_is_read_without_py_spy_too(start: Start, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where py-spy is not installed, or is older than the Python."""
    require(f"python{version}")
    targets = [start("threaded", python=str(python)).pid for python in pythons(version)]
    for pid in targets:
        until(lambda pid=pid: told_apart(pid))  # type: ignore[misc]
        by_py_spy = [stack.python for stack in capture([pid]).stacks]
        with monkeypatch.context() as without:
            without.setattr(pyspy, "binary", lambda: None)
            ours = [stack.python for stack in capture([pid]).stacks]
        assert sorted(ours) == sorted(by_py_spy)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare, for a pid namespace")
@pytest.mark.parametrize("version", pythons_here())
def test_threads_in_a_container_are_found_by_our_ids(start_command: Callable[..., Target], version: str) -> None:
    """In its own pid namespace a thread has another id, which is the one that Python 3.11 and later know."""
    require(f"python{version}")
    for python in pythons(version):
        unshare = start_command("unshare", "--pid", "--fork", "--mount-proc", str(python), str(PROGRAM), "threaded")
        children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
        pid = int(children.read_text().split()[0])
        until(lambda pid=pid: told_apart(pid))  # type: ignore[misc]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_users_process_says_whose_it_is_and_what_mends_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same capture as nobody, without capabilities: stacks of root's process are refused, with the reason."""
    monkeypatch.setattr("gputop.stacks.permission.in_container", lambda _root: False)
    pid = start("sleeping").pid
    child = os.fork()
    if child == 0:
        try:
            with open(tmp_path / "out", "w") as out:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                stack = capture([pid]).stacks[0]
                print(stack.error, stack.missing, file=out)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = (tmp_path / "out").read_text()
    assert "belongs to root" in said
    assert f'sudo "$(command -v gputop)" stacks {pid}' in said
    assert "needs root" in said
