"""Python stacks read from memory, in every Python at hand."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop.stacks import interpreter, layout, pyspy, sampling
from gputop.stacks.frames import Line, Unreadable
from gputop.stacks.interpreter import Interpreter
from gputop.stacks.layout import Torn, line_of
from gputop.stacks.sampling import by_line, sample_by_memory
from tests.require import pythons, pythons_here, require
from tests.stacks.conftest import Target
from tests.wait import until

Start = Callable[..., Target]
KNOWN = [version for version in pythons_here() if version not in ("3.6", "3.7")]


@pytest.mark.parametrize("version", KNOWN)
def test_every_instruction_has_the_line_that_python_says(version: str) -> None:
    """Some 600 functions of the standard library."""
    require(f"python{version}")
    minor = int(version.removesuffix("t").partition(".")[2])
    command = [pythons(version)[0], Path(__file__).parent / "line_tables.py"]
    functions = [json.loads(line) for line in subprocess.run(command, capture_output=True, check=True).stdout.splitlines()]
    assert len(functions) > 300
    for table, first, lines in functions:
        assert [line_of(minor, bytes.fromhex(table), first, offset) for offset, _ in lines] == [line for _, line in lines]


@pytest.mark.parametrize("entry", [b"\xe8", b"\xe8" + b"\x7f" * 15, b"\xf0\x40"])
@pytest.mark.parametrize("minor", [11, 14])
def test_numbers_in_line_tables_have_an_end(minor: int, entry: bytes) -> None:
    """Whoever is read may have made its table up: one number that goes through all of it took a week."""
    began_s = time.thread_time()
    line_of(minor, entry * ((1 << 20) // len(entry)), 1, 1 << 40)
    assert time.thread_time() - began_s < 5


class Hostile:
    """An interpreter whose stack is always another, and takes long to read."""

    def __init__(self, *_: object) -> None:
        self.looks = 0

    def __enter__(self) -> Hostile:
        return self

    def __exit__(self, *_: object) -> None: ...

    def main_thread(self) -> None: ...

    def main_frames(self) -> list[Line]:
        self.looks += 1
        return [Line(str(self.looks), "x" * 1000, frame) for frame in range(200)]

    def stacks(self) -> None:
        self.looks += 1
        until = time.thread_time() + 0.6
        while time.thread_time() < until:
            pass
        raise Torn


def test_distinct_stacks_are_kept_as_far_as_a_budget_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "Interpreter", Hostile)
    monkeypatch.setattr(sampling, "_MOST_TEXT", 2_000_000)
    assert 0 < len(sampling.sample_by_memory(1, 1.0, 100)) < 10


def test_sampling_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hostile, "main_frames", lambda _: time.sleep(0.3) or [Line("f", "x.py", 1)])
    monkeypatch.setattr(sampling, "Interpreter", Hostile)
    ((_, count),) = sampling.sample_by_memory(1, 1.0, 100)
    assert count <= 4


def test_a_process_that_takes_long_to_read_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = Hostile()
    monkeypatch.setattr(interpreter, "Interpreter", lambda *_: hostile)
    with pytest.raises(Unreadable):
        interpreter.dump(1)
    assert hostile.looks == 1


@pytest.mark.parametrize("pointer", [1, 1 << 47, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_pointer_that_leads_nowhere_is_a_torn_stack(pointer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs there chooses it, and a word that is read while it changes may be anything."""
    with Interpreter(os.getpid()) as python:
        with pytest.raises(OSError, match=r"."):
            python.read(pointer, 8)
        word, near = python._word, python._runtimes[0].address + (1 << 20)
        monkeypatch.setattr(python, "_word", lambda address: pointer if address > near else word(address))
        assert interpreter._try(python) in (None, [])


def test_it_reads_itself_beside_a_thread_that_moves() -> None:
    """This process: what `sys._current_frames` would say of the waiting thread, while another runs."""
    gate, ended = threading.Event(), threading.Event()

    def waits_here() -> None:
        gate.wait()

    def moves() -> None:
        while not ended.is_set():
            sum(range(10))

    threads = [threading.Thread(target=target, daemon=True) for target in (waits_here, moves)]
    for thread in threads:
        thread.start()
    try:
        found = {thread.tid: thread.frames for thread in interpreter.dump(os.getpid())}
    finally:
        gate.set()
        ended.set()
    waiting = found[threads[0].native_id]
    at = next(frame for frame in waiting if frame.name.endswith("waits_here"))
    assert (at.file, at.line) == (__file__, waits_here.__code__.co_firstlineno + 1)
    assert found.keys() >= {os.getpid()}


def test_a_file_name_beyond_ascii(start_command: Callable[..., Target], tmp_path: Path) -> None:
    for version in KNOWN:
        for python in pythons(version):
            for name in ("größe.py", "Ω.py", "🦊.py"):
                path = tmp_path / name
                path.write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n", encoding="utf-8")
                target = start_command(str(python), "-X", "utf8", str(path))
                main = interpreter.dump(target.pid)[0]
                assert [(line.file, line.line >= 2) for line in main.frames] == [(str(path), True)], python


def test_sampling_from_memory_splits_time_by_line(start: Start) -> None:
    share = by_line(sample_by_memory(start("sleeping").pid, 0.5))[0]
    assert (share.function, share.file) == ("sleeping", str(Path(__file__).parent / "stalled.py"))
    assert share.share > 0.8


def test_what_is_no_python_says_so() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(Unreadable) as refused:
                interpreter.dump(process.pid)
        finally:
            process.kill()
        process.wait()
    assert refused.value.kind in pyspy.BEYOND_PY_SPY
    with pytest.raises(Unreadable) as gone:
        Interpreter(process.pid)
    assert gone.value.kind == "gone"


def test_a_newer_python_is_named_with_what_may_mend_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "RELEASED", {})
    monkeypatch.setattr(layout, "described", lambda _: None)
    with pytest.raises(Unreadable, match=r"this gputop knows 3\.8 to 3\.14: `pip install -U"):
        interpreter.dump(start("sleeping").pid)


def test_debug_offsets_of_an_unknown_form_are_refused() -> None:
    assert layout.described(bytes(layout.DEBUG_OFFSETS_BYTES)) is None
    newer = b"xdebugpy" + (0x030F00F0).to_bytes(8, "little") + bytes(layout.DEBUG_OFFSETS_BYTES)
    assert layout.described(newer) is None


def test_frames_of_the_main_thread_come_innermost_first(start: Start) -> None:
    pid = start("threaded").pid
    until(lambda: [line.name for line in interpreter.dump(pid)[0].frames] == ["threaded", "<module>"])


def test_a_python_of_unknown_version_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "described", lambda _: None)
    with Interpreter(os.getpid()) as python, pytest.raises(Unreadable, match="a Python of unknown version:"):
        python._layout(python._runtimes[0].address, None)
