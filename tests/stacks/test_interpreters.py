"""Processes with several interpreters, in every Python at hand: each of them is walked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop.model.frame import Stack
from gputop.stacks import interpreter
from gputop.stacks.capture import StackSet, capture
from gputop.stacks.frames import Unreadable, parse
from gputop.stacks.sampling import by_line, sample
from tests.require import pythons, pythons_here, require
from tests.stacks.conftest import Target
from tests.wait import until

StartCommand = Callable[..., Target]
HERE = Path(__file__).parent
SLEEPS = ("clock_nanosleep", "select", "pselect6")
KNOWN = [version for version in pythons_here() if version not in ("3.6", "3.7")]


def functions(stack: Stack) -> list[str]:
    return [parse(line).name.rpartition(".")[2] for line in stack.python]


def settled(pid: int, native: bool = False) -> StackSet:
    """Its stacks once its main thread waits, and whoever runs another interpreter sleeps."""
    taken: list[StackSet] = []

    def is_settled() -> bool:
        taken.append(capture([pid], native=native))
        main, *others = taken[-1].stacks
        own = [one for one in others if functions(one)[:1] == ["inside_1"]]
        return functions(main)[:1] == ["waiting"] and all("kernel" in one.missing or one.syscall in SLEEPS for one in own)

    until(is_settled)
    return taken[-1]


@pytest.mark.parametrize("maker", ["main", "thread"])
@pytest.mark.parametrize("version", KNOWN)
def test_each_interpreter_is_there_above_who_runs_it(version: str, maker: str, start_command: StartCommand) -> None:
    require(f"python{version}")
    for python in pythons(version):
        pid = start_command(str(python), str(HERE / "interpreters.py"), maker).pid
        taken = settled(pid)
        main, *others = taken.stacks
        assert (main.tid, functions(main)[0], functions(main)[-1]) == (pid, "waiting", "<module>"), python
        insides = [one for one in others if functions(one)[0].startswith("inside_")]
        assert sorted(functions(one)[:2] for one in insides) == [["inside_0", "<module>"], ["inside_1", "<module>"]], python
        if version in ("3.8", "3.9"):  # which say nowhere whose C stack an interpreter is on
            assert all("is unknown" in one.missing["kernel"] for one in insides), python
            assert len(others) == 4, python
        else:
            assert [functions(one)[2:4] for one in insides] == [["run", "run"]] * 2, python
            assert len({one.tid for one in taken.stacks}) == 3, python
            assert all(one.syscall in SLEEPS for one in insides), python
        assert taken.paused == frozenset()


def test_the_main_threads_time_is_its_own(start_command: StartCommand) -> None:
    pid = start_command(sys.executable, str(HERE / "interpreters.py"), "main").pid
    share = by_line(sample(pid, 0.5))[0]
    assert (share.function, share.file) == ("waiting", str(HERE / "interpreters.py"))


def test_native_frames_are_not_py_spys_guess(start_command: StartCommand) -> None:
    """Of several interpreters it reads one."""
    pid = start_command(sys.executable, str(HERE / "interpreters.py"), "thread").pid
    main, *_ = settled(pid, native=True).stacks
    assert "several interpreters" in main.missing["native"]


def test_two_pythons_of_one_process(start_command: StartCommand) -> None:
    library = Path("/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0")
    if not library.exists():
        pytest.skip("needs the distribution's libpython: apt install libpython3-dev")
    for version in [version for version in KNOWN if version != "3.11"]:
        for python in pythons(version):
            pid = start_command(str(python), str(HERE / "embedding.py"), str(library)).pid
            main, other = settled(pid).stacks
            assert (main.tid, functions(main)[0]) == (pid, "waiting"), python
            assert functions(other)[:3] == ["embedded", "<module>", "embed"], python


def test_a_chain_of_interpreters_that_has_no_end_is_left(start_command: StartCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = start_command(sys.executable, str(HERE / "interpreters.py"), "main").pid
    with interpreter.Interpreter(pid) as python:
        (runtime,) = python._runtimes
        first = python._interpreters(runtime)
        assert len(first) == 4
        read, end = python._word, 1 << 40

        def made_up(address: int) -> int:
            nonlocal end
            if address in (one + runtime.layout.next_interpreter for one in first) or address >= 1 << 40:
                end += 1 << 20
                return end
            return read(address)

        monkeypatch.setattr(python, "_word", made_up)
        assert len(python._interpreters(runtime)) == interpreter.MAX_INTERPRETERS


def test_what_one_process_makes_us_read_is_bounded(start_command: StartCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "MOST_READ", 1024)
    pid = start_command(sys.executable, str(HERE / "interpreters.py"), "main").pid
    with pytest.raises(Unreadable, match="more than 0 MiB of names and lines"):
        interpreter.dump(pid)
