"""Root's gputop and processes of others: py-spy has the rights of who owns what it reads, and its names lead root nowhere."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputop.stacks import pyspy, sampling
from gputop.stacks.capture import capture
from gputop.stacks.frames import Unreadable
from gputop.system.privilege import CAP_SETUID, CAP_SYS_PTRACE, _set_capabilities, capabilities
from tests.require import PYTHONS, pythons
from tests.wait import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be others")

NOBODY, SOMEBODY = 65534, 54321
CAP_SETPCAP = 8
STALLS = """
import mmap, os, sys, time
uids, gids, library = eval(sys.argv[1]), eval(sys.argv[2]), sys.argv[3]
os.setgroups([4])
os.setresgid(*gids)
os.setresuid(*uids)
if library:
    with open(library, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
def stall():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
stall()
"""
TELLS = "#!/bin/sh\ncat /proc/self/status\nsed 's/  \\+/:\\t/' /proc/self/limits\n"

Of = Callable[..., int]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that nobody owns and everybody reaches."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def process_of() -> Iterator[Of]:
    """``process_of(uids, gids, library="", python=…)`` gives the pid of a Python process with these ids, which maps ``library``."""
    running: list[subprocess.Popen[str]] = []

    def begin(uids: tuple[int, int, int], gids: tuple[int, int, int], library: str = "", python: str = sys.executable) -> int:
        command = [python, "-c", STALLS, repr(uids), repr(gids), library]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        told = running[-1].stdout
        assert told is not None
        assert told.readline() == "ready\n"
        return running[-1].pid

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def everybodys_python() -> str:
    """One that nobody may run, too, and py-spy knows."""
    for path in [path for version in PYTHONS if not version.endswith("t") for path in pythons(version)]:
        try:
            subprocess.run([path, "-c", ""], user=NOBODY, group=NOBODY, extra_groups=[NOBODY], check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return str(path)
    pytest.skip("no Python that everybody may run")


def status_of_py_spy(pid: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    program = place / "py-spy"
    program.write_text(TELLS)
    program.chmod(0o755)
    monkeypatch.setattr(pyspy, "binary", lambda: str(program))
    told = pyspy.run(pid, ["dump"], time.monotonic() + 30).decode()
    return {name: words.split() for name, words in re.findall(r"^([\w ]+):\t(.*)$", told, re.MULTILINE)}


@pytest.mark.parametrize(
    ("uids", "gids", "uid", "gid"),
    [
        ((NOBODY,) * 3, (NOBODY,) * 3, NOBODY, NOBODY),
        ((SOMEBODY,) * 3, (NOBODY,) * 3, SOMEBODY, NOBODY),
        ((NOBODY, 0, 0), (NOBODY, 0, 0), NOBODY, NOBODY),  # somebody's, of a program with root's setuid bit
        ((0, SOMEBODY, 0), (0, NOBODY, 0), SOMEBODY, NOBODY),  # root's, which acts for somebody
    ],
)
def test_it_runs_as_the_owner_and_may_trace_but_nothing_else(
    process_of: Of, place: Path, monkeypatch: pytest.MonkeyPatch, uids: tuple[int, int, int], gids: tuple[int, int, int], uid: int, gid: int
) -> None:
    told = status_of_py_spy(process_of(uids, gids), place, monkeypatch)
    assert told["Uid"] == [str(uid)] * 4
    assert told["Gid"] == [str(gid)] * 4
    assert told["Groups"] == [str(gid)]
    assert {int(told[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {1 << CAP_SYS_PTRACE}
    assert told["NoNewPrivs"] == ["1"]
    most = {"Max data size": pyspy.MOST_MEMORY, "Max file size": pyspy.MOST_OUTPUT, "Max core file size": 0}
    assert {name: told[name][:2] for name in most} == {name: [str(bytes_)] * 2 for name, bytes_ in most.items()}


def test_of_roots_own_processes_it_is_root(process_of: Of, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = status_of_py_spy(process_of((0, 0, 0), (0, 0, 0)), place, monkeypatch)
    assert told["Uid"] == ["0"] * 4
    assert int(told["CapEff"][0], 16) == capabilities()


def test_nothing_of_it_stays_with_us(process_of: Of, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rights() -> list[str]:
        status = Path("/proc/thread-self/status").read_text()
        return re.findall(r"^(?:Uid|Gid|Groups|Cap\w+|NoNewPrivs):.*$", status, re.MULTILINE)

    before = rights()
    status_of_py_spy(process_of((NOBODY,) * 3, (NOBODY,) * 3), place, monkeypatch)
    assert rights() == before


def test_another_users_stacks_come(process_of: Of) -> None:
    pid = process_of((NOBODY,) * 3, (NOBODY,) * 3, python=everybodys_python())
    for options in ({}, {"pause": True}, {"native": True}):
        (thread,) = pyspy.dump(pid, time.monotonic() + 30, **options)
        assert any(line.name == "stall" for line in thread.frames)
    samples = sampling._sample_by_py_spy(pid, 1.0, 50)
    assert any("stall" in frames[-1] for frames, _ in samples)
    assert not any("py-spy>" in frame for frames, _ in samples for frame in frames)


@pytest.mark.parametrize("lacking", [CAP_SETPCAP, CAP_SYS_PTRACE])
def test_without_what_it_takes_to_lend_a_capability_it_goes_without(
    process_of: Of, place: Path, monkeypatch: pytest.MonkeyPatch, lacking: int
) -> None:
    pid = process_of((NOBODY,) * 3, (NOBODY,) * 3)
    told = in_a_child_without(lacking, lambda: str(status_of_py_spy(pid, place, monkeypatch)["CapPrm"]))
    assert told == "['0000000000000000']"


def test_root_that_cannot_become_others_does_not_run_it_as_root(process_of: Of, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = process_of((NOBODY,) * 3, (NOBODY,) * 3)

    def refused() -> str:
        try:
            return str(status_of_py_spy(pid, place, monkeypatch))
        except Unreadable as error:
            return f"{error.kind}: {error.reason}"

    assert in_a_child_without(CAP_SETUID, refused).startswith("missing: py-spy could not be started: another user's program needs CAP_SET")


def in_a_child_without(capability: int, do: Callable[[], str]) -> str:
    """What ``do`` says in a child of ours that has not that capability."""
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        said = "it did not end"
        try:
            _set_capabilities(ctypes.CDLL(None, use_errno=True), capabilities() & ~(1 << capability))
            said = do()
        except BaseException as error:  # noqa: BLE001 - told to the parent
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writes, said.encode())
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def library_with_another_in_its_place(process_of: Of, place: Path, put: Callable[[Path], None]) -> int:
    """A process of nobody that maps a file as libpython; what ``put`` makes stands where the kernel says that this file was."""
    library = place / "libpython3.11.so.1.0"
    shutil.copy(shutil.which("true") or "/bin/true", library)
    pid = process_of((NOBODY,) * 3, (NOBODY,) * 3, str(library), everybodys_python())
    library.unlink()
    put(place / f"{library.name} (deleted)")
    return pid


def test_what_only_root_may_open_is_not_opened_in_a_librarys_place(process_of: Of, place: Path) -> None:
    """A FIFO holds whoever opens it: as root, py-spy stood there up to the deadline."""
    pid = library_with_another_in_its_place(process_of, place, lambda path: os.mkfifo(path, 0o600))
    with pytest.raises(Unreadable) as refused:
        pyspy.dump(pid, time.monotonic() + 10)
    assert refused.value.kind == "hidden"
    (stack,) = capture([pid], timeout_s=10).stacks
    assert any("stall" in line for line in stack.python), stack.error


def test_a_device_in_a_librarys_place_is_not_opened_by_root(process_of: Of, place: Path) -> None:
    """One that its owner may not open, such as a disk, by a link."""
    device = place.with_name(f"{place.name}-device")
    os.mknod(device, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero: read as a library it would never end
    try:
        pid = library_with_another_in_its_place(process_of, place, lambda path: path.symlink_to(device))
        with pytest.raises(Unreadable) as refused:
            pyspy.dump(pid, time.monotonic() + 10)
        assert refused.value.kind == "hidden"
    finally:
        device.unlink()


def test_what_its_owner_may_open_is_opened_by_the_owner(process_of: Of, place: Path) -> None:
    def put(path: Path) -> None:
        os.mkfifo(path, 0o600)
        os.chown(path, NOBODY, NOBODY)

    pid = library_with_another_in_its_place(process_of, place, put)
    kinds: list[str] = []

    def dump() -> None:
        try:
            pyspy.dump(pid, time.monotonic() + 60)
        except Unreadable as error:
            kinds.append(error.kind)

    thread = threading.Thread(target=dump)
    thread.start()
    try:
        until(lambda: kinds or py_spies())
        (spy,) = py_spies()
        until(lambda: b"wait_for_partner" in (wchan := Path(f"/proc/{spy}/wchan").read_bytes()) or b"fifo_open" in wchan)
        assert re.search(rf"^Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}$", Path(f"/proc/{spy}/status").read_text(), re.MULTILINE)
        os.kill(spy, signal.SIGKILL)
    finally:
        thread.join()
    assert kinds == ["torn"]


def py_spies() -> list[int]:
    """Our children that are py-spy."""
    try:
        children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
        return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "py-spy\n"]
    except OSError:  # one that has just ended
        return []


def test_a_process_that_became_anothers_meanwhile_is_not_told(process_of: Of, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = process_of((NOBODY,) * 3, (NOBODY,) * 3)
    real, looks = pyspy._ids, []

    def ids(process: int) -> tuple[int, int] | None:
        looks.append(real(process))
        return looks[0] if len(looks) == 1 else (SOMEBODY, SOMEBODY)

    monkeypatch.setattr(pyspy, "_ids", ids)
    with pytest.raises(Unreadable) as refused:
        status_of_py_spy(pid, place, monkeypatch)
    assert refused.value.kind == "gone"


def test_a_process_that_ended_meanwhile_is_not_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another's by then."""
    target = subprocess.Popen(["sleep", "600"], user=NOBODY, group=NOBODY, extra_groups=[NOBODY])
    real = pyspy._await

    def end_it(child: subprocess.Popen[bytes], deadline: float) -> str:
        told = real(child, deadline)
        target.kill()
        target.wait()
        return told

    monkeypatch.setattr(pyspy, "_await", end_it)
    with pytest.raises(Unreadable) as refused:
        status_of_py_spy(target.pid, place, monkeypatch)
    assert refused.value.kind == "gone"
