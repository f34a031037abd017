"""A recording outlasts a full disk and the death of its collector: it says so, goes on when it can, and the gap is told with its reason."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.recording import writer
from gputop.recording.format import pack_frames, pack_header
from gputop.recording.lasting import TRY_S, Lasting
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.recording.writer import NO_LIMIT, Rotation
from gputop.stream import recorder as stream_recorder
from gputop.stream import restarts
from gputop.stream.child import ChildStream
from gputop.stream.command import Command
from gputop.stream.explained import explain_files
from gputop.stream.moment import Span
from gputop.stream.reader import Loop
from gputop.stream.restarts import RESTART_S, LastingStream, Restarts
from gputop.stream.stalled import Unwatched
from gputop.tables.database import Database
from tests.pty.tree import tree
from tests.recording.made import HEADER, Session
from tests.recording.test_columns import coarse
from tests.streams import Given
from tests.wait import PATIENCE_S, at_this_load, until

GPUTOP = [sys.executable, "-m", "gputop"]


class Disk:
    """What `write_all` meets: nothing while ``error`` is 0; then, in files of this ending, that, with half of the bytes written."""

    def __init__(self) -> None:
        self.error, self.ending = 0, ""
        self._write = writer.write_all

    def write(self, fd: int, data: bytes) -> None:
        if self.error and os.readlink(f"/proc/self/fd/{fd}").endswith(self.ending):
            self._write(fd, data[: len(data) // 2])
            raise OSError(self.error, os.strerror(self.error))
        self._write(fd, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr("gputop.recording.writer.write_all", made.write)
    return made


class Recorder:
    """Frames into a recording by a clock of their own."""

    def __init__(self, path: Path) -> None:
        self.told: list[str] = []
        self.now_s = 1000.0
        self.board = Board(header=HEADER)
        self.lasting = Lasting(Rotation(str(path), HEADER, NO_LIMIT, 0), self.told.append, lambda: self.now_s)

    def add(self, frame: Frame) -> None:
        self.now_s += max(0.1, (frame.t_ns - self.board.t_ns) / 1e9) if self.board.t_ns else 0.1
        self.board.fold(frame)
        self.lasting.add(frame, self.board)


def frames_made(count: int, seed: int = 1) -> list[Frame]:
    return [coarse(frame) for frame in Session(seed, 3).frames(count)]


def gaps(recording: Recording) -> list[tuple[float, str]]:
    _, rows = Database(recording, 0, 1 << 62).ask("SELECT round(dt_s, 3), reason FROM gap")
    return [(seconds, reason) for seconds, reason in rows]  # type: ignore[misc]


def read(*paths: Path) -> tuple[list[Frame], list[tuple[float, str]]]:
    """Frames and gaps of what must have no other problem."""
    with open_recording([str(path) for path in paths]) as recording:
        assert recording.problem == ""
        return list(recording.frames()), gaps(recording)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_takes_nothing_for_a_while_costs_that_while(tmp_path: Path, disk: Disk, number: int) -> None:
    recorder, frames, why = Recorder(tmp_path / "a.gputop"), frames_made(300), os.strerror(number)
    for i, frame in enumerate(frames):
        disk.error = number if 95 <= i < 160 else 0
        recorder.add(frame)
    recorder.lasting.close()
    found, (gap,) = read(tmp_path / "a.gputop")
    before, after = (found[i] for i in next((i, i + 1) for i in range(len(found)) if found[i + 1].t_ns - found[i].t_ns > SECOND_NS))
    assert [frame.seq for frame in found] == [*range(before.seq + 1), *range(after.seq, 300)]
    assert 84 < before.seq < 96, "what was written before is there"
    assert 160 <= after.seq <= 160 + TRY_S[2] * 10, "it is tried again and again"
    assert gap == (round((after.t_ns - before.t_ns) / 1e9, 3), why)
    assert after.key
    assert {proc.pid for proc in after.procs} >= {proc.pid for proc in frames[after.seq].procs}
    assert [mark.text for mark in after.marks] == [f"no data for {gap[0]:.1f} s: {why}"]
    assert len(recorder.told) == 2
    assert f"pauses: {why}" in recorder.told[0]
    assert f"goes on in {tmp_path / 'a.gputop'}: {gap[0]:.1f} s are missing" in recorder.told[1]
    assert recorder.lasting.missing == f"{gap[0]:.1f} s are missing ({why})"


def test_a_file_that_may_be_no_larger_is_followed_by_the_next(tmp_path: Path, disk: Disk) -> None:
    recorder, disk.ending = Recorder(tmp_path / "a.gputop"), "a.gputop"
    for i, frame in enumerate(frames_made(300)):
        disk.error = errno.EFBIG if i >= 95 else 0
        recorder.add(frame)
    recorder.lasting.close()
    with Recording(str(tmp_path / "a.gputop")) as first:
        assert [frame.seq for frame in first.frames()][-1] > 80
    with Recording(str(tmp_path / "a.2.gputop")) as second:
        assert second.problem == ""
        assert [frame.seq for frame in second.frames()][-1] == 299
    with open_recording([str(tmp_path / "a.gputop"), str(tmp_path / "a.2.gputop")]) as both:
        ((seconds, reason),) = gaps(both)
    assert seconds < 2
    assert reason == "File too large"
    assert f"goes on in {tmp_path / 'a.2.gputop'}" in recorder.told[1]


def test_a_file_that_somebody_deletes_is_followed_by_the_next(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.gputop")
    for i, frame in enumerate(frames_made(1500)):
        if i == 95:
            (tmp_path / "a.gputop").unlink()
        recorder.add(frame)
    recorder.lasting.close()
    found, _ = read(tmp_path / "a.2.gputop")
    assert found[-1].seq == 1499
    assert "was deleted" in recorder.told[0]
    assert "goes on in" in recorder.told[1]


def test_a_disk_that_stays_full_is_told_once_and_in_the_end(tmp_path: Path, disk: Disk) -> None:
    recorder = Recorder(tmp_path / "a.gputop")
    for i, frame in enumerate(frames_made(600)):
        disk.error = errno.ENOSPC if i >= 95 else 0
        recorder.add(frame)
    recorder.lasting.close()
    assert len(recorder.told) == 1
    assert recorder.lasting.missing.endswith("s are missing (No space left on device)")
    assert float(recorder.lasting.missing.split()[0]) == pytest.approx(51, abs=1)
    with Recording(str(tmp_path / "a.gputop")) as recording:
        assert [frame.seq for frame in recording.frames()][-1] > 80


def test_what_the_job_marks_meanwhile_is_not_lost(tmp_path: Path, disk: Disk) -> None:
    from gputop.model.frame import Mark

    recorder, frames = Recorder(tmp_path / "a.gputop"), frames_made(200)
    for i, frame in enumerate(frames):
        disk.error = errno.ENOSPC if 95 <= i < 120 else 0
        recorder.add(replace(frame, marks=[Mark(frame.t_ns, f"epoch {i}")] if i % 10 == 0 else []))
    recorder.lasting.close()
    with Recording(str(tmp_path / "a.gputop")) as recording:
        texts = [mark.text for mark in recording.marks]
    assert {f"epoch {i}" for i in range(100, 200, 10)} <= set(texts)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.soak if seed > 3 else ()) for seed in range(16)])
def test_whatever_fails_whenever_what_is_written_is_whole(tmp_path: Path, disk: Disk, seed: int) -> None:
    """Errors at any time, of any kind, for any time; the reader finds nothing damaged, and every gap where frames are missing."""
    dice, recorder, until_i = random.Random(seed), Recorder(tmp_path / "a.gputop"), 0
    frames = frames_made(dice.randint(50, 900), seed)
    for i, frame in enumerate(frames):
        if i >= until_i:
            disk.error = dice.choice((0, 0, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG))
            until_i = i + dice.choice((1, 3, 10, 40, 150))
        recorder.add(frame)
    disk.error = 0
    recorder.lasting.close()
    paths = sorted(tmp_path.iterdir(), key=lambda path: int(path.name.split(".")[1]) if path.name.count(".") > 1 else 1)
    with open_recording([str(path) for path in paths]) as recording:
        found, told, lost = list(recording.frames()), gaps(recording), recording.lost
        texts = [mark.text for mark in recording.marks if mark.gap_reason]
    assert not lost
    seqs = [frame.seq for frame in found]
    assert seqs == sorted(set(seqs))
    missing = [(b.t_ns - a.t_ns) / 1e9 for a, b in pairwise(found) if b.seq != a.seq + 1]
    assert [seconds for seconds, _ in told] == [pytest.approx(seconds, abs=0.002) for seconds in missing]
    assert all(reason != "not in the file" for _, reason in told)
    assert len(texts) == len(told) + (found[0].seq > 0)
    assert len(recorder.told) <= 2 * (len(told) + 2)


def test_no_more_is_written_than_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1 << 30]
    monkeypatch.setattr("gputop.recording.lasting._room", lambda _path: (float(1 << 30), float(free[0])))
    recorder = Recorder(tmp_path / "a.gputop")
    for i, frame in enumerate(frames_made(300)):
        free[0] = 100 << 20 if 95 <= i < 160 else 1 << 30
        recorder.add(frame)
    recorder.lasting.close()
    found, ((seconds, reason),) = read(tmp_path / "a.gputop")
    assert seconds == pytest.approx(6.5, abs=1.2)
    assert reason == "No space left on device but the 161.1 MB that it leaves free"
    assert len(recorder.told) == 2
    assert [frame.seq for frame in found if frame.seq < 95] == list(range(95)), "all that came before is written"


def test_a_nearly_full_disk_takes_half_of_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [10 << 20]
    monkeypatch.setattr("gputop.recording.lasting._room", lambda _path: (float(1 << 40), float(free[0])))
    recorder, frames = Recorder(tmp_path / "a.gputop"), frames_made(100)
    for frame in frames[:50]:
        recorder.add(frame)
    assert not recorder.told
    free[0] = 5 << 20
    recorder.add(frames[99])
    free[0] = (5 << 20) - 1
    recorder.add(replace(frames[99], t_ns=frames[99].t_ns + 2 * SECOND_NS))
    assert len(recorder.told) == 1


def test_a_machine_that_was_started_anew_goes_on_in_the_next_file(tmp_path: Path) -> None:
    recorder, again = Recorder(tmp_path / "a.gputop"), replace(HEADER, boot_id="another", t_ns=5 * SECOND_NS)
    for frame in frames_made(50):
        recorder.add(frame)
    recorder.board = Board(header=again)
    recorder.lasting.restate(again)
    for frame in frames_made(50):
        recorder.add(replace(frame, t_ns=frame.t_ns - HEADER.t_ns + again.t_ns))
    recorder.lasting.close()
    assert len(read(tmp_path / "a.gputop")[0]) == 50
    with Recording(str(tmp_path / "a.2.gputop")) as second:
        assert second.header.boot_id == "another"
        assert len(list(second.frames())) == 50


# collectors


def test_pauses_grow_until_one_runs_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(restarts.time, "monotonic", lambda: now[0])
    pacing, pauses = Restarts(), []
    for lasted_s in (1.0,) * (len(RESTART_S) + 2) + (100.0, 1.0):
        pacing.begin()
        now[0] += lasted_s
        pauses.append(pacing.end("gone"))
    assert pauses == [*RESTART_S, RESTART_S[-1], RESTART_S[-1], RESTART_S[0], RESTART_S[1]]


def program(tmp_path: Path, frames: list[Frame], then: str) -> list[str]:
    """Writes a stream and then does as it is told."""
    stream = tmp_path / f"stream{frames[0].t_ns}"
    stream.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    return ["sh", "-c", f"cat {stream}; {then}"]


def test_a_collector_that_ends_is_started_again_and_its_last_words_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "RESTART_S", (0.01, 0.02))
    frames, told = frames_made(60), list[str]()
    later = [replace(frame, seq=i, key=i == 0) for i, frame in enumerate(frames[40:])]
    first = program(tmp_path, frames[:20], "echo 'gputop: out of luck' >&2; exit 1")
    argvs = iter([program(tmp_path, later, "exec sleep 60")])
    stream = LastingStream(ChildStream(first), lambda: ChildStream(next(argvs)), told.append)
    came: list[Header | Frame] = []
    until(lambda: came.extend(stream.read(0.1)) or sum(isinstance(item, Frame) for item in came) == 40)
    stream.close()
    found = [item for item in came if isinstance(item, Frame)]
    assert [mark.text for mark in found[20].marks] == ["no data for 2.1 s: the collector ended (gputop: out of luck)"]
    assert "out of luck; starting it again in 0.01 s" in told[0]
    assert told[1].startswith("the collector runs again: ")
    assert len(told) == 2
    assert stream.trouble == ""


def test_collectors_that_end_all_the_time_are_told_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "RESTART_S", (0.01, 0.02, 0.03))
    told, started = list[str](), list[int]()
    argv = program(tmp_path, frames_made(3), "echo 'gputop: no luck' >&2; exit 1")

    def start() -> ChildStream:
        started.append(1)
        return ChildStream(argv)

    stream = LastingStream(ChildStream(argv), start, told.append)
    until(lambda: stream.read(0.1) is None or len(started) == 8)
    stream.close()
    assert len(told) <= 6
    assert sum("from now on every 0.03 s" in line for line in told) == 1


# the program


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    if os.geteuid() != 0:
        pytest.skip("not root: cannot mount")
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


class Record:
    """`gputop record` with what it says in a file."""

    started: ClassVar[list[Record]] = []

    def __init__(self, folder: Path, *argv: str) -> None:
        self._said = folder / "said"
        with self._said.open("w") as said:
            self.process = subprocess.Popen([*GPUTOP, "record", "--no-ebpf", *argv], stderr=said)
        self.started.append(self)

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_said(self, text: str) -> None:
        until(lambda: text in self.said or self.process.poll() is not None)
        assert text in self.said

    @property
    def collector(self) -> int:
        """The pid of its collector, 0 while there is none."""
        return next((pid for pid in tree(self.process.pid) if b"\0gputop.collector\0" in command_of(pid)), 0)


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """No recorder outlives its test, also where that fails."""
    yield
    for record in Record.started:
        if record.process.poll() is None:
            record.process.terminate()
            record.process.wait(PATIENCE_S)
    Record.started.clear()


def command_of(pid: int) -> bytes:
    """Its arguments, none once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def job(tmp_path: Path) -> tuple[list[str], Callable[[], None]]:
    """A command that runs until it is told to end, with exit code 7."""
    end = tmp_path / "end"
    return ["sh", "-c", f"until [ -e {end} ]; do sleep 0.05; done; exit 7"], end.touch


def test_a_disk_that_is_full_for_a_while(tmp_path: Path, small: Path, job: tuple[list[str], Callable[[], None]]) -> None:
    command, end = job
    record = Record(tmp_path, "-o", str(small / "a.gputop"), "--", *command)
    until(lambda: (small / "a.gputop").exists() and (small / "a.gputop").stat().st_size > 3000)
    fill(small / "other")
    record.wait_said("pauses: No space left on device")
    assert record.process.poll() is None
    (small / "other").unlink()
    record.wait_said("goes on in")
    size = (small / "a.gputop").stat().st_size
    until(lambda: (small / "a.gputop").stat().st_size > size)
    end()
    assert record.process.wait(PATIENCE_S) == 7
    _, told = read(small / "a.gputop")
    assert any("No space left on device" in reason for _, reason in told)
    assert record.said.count("pauses") == 1
    assert "s are missing (No space left on device" in record.said.splitlines()[-1]
    assert "Traceback" not in record.said


def fill(path: Path) -> None:
    """All that a disk has room for."""
    assert subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=4096"], capture_output=True, check=False).returncode == 1


def test_a_disk_that_stays_full(tmp_path: Path, small: Path, job: tuple[list[str], Callable[[], None]]) -> None:
    command, end = job
    record = Record(tmp_path, "-o", str(small / "a.gputop"), "--", *command)
    until(lambda: (small / "a.gputop").exists() and (small / "a.gputop").stat().st_size > 3000)
    fill(small / "other")
    record.wait_said("pauses: No space left on device")
    end()
    assert record.process.wait(PATIENCE_S) == 7
    assert record.said.count("pauses") == 1
    assert "s are missing (No space left on device" in record.said
    with Recording(str(small / "a.gputop")) as recording:
        assert list(recording.frames())


def test_findings_for_which_a_file_may_grow_no_more_are_left_out(tmp_path: Path) -> None:
    path, findings = tmp_path / "a.gputop", random.Random(1).randbytes(20_000)
    one = writer.Writer(str(path), HEADER, lambda: findings)
    for frame in Session(1, 3, threads=2).frames(40):
        one.add(frame)
    one.flush()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (one.size + 10_000, before[1]))
    try:
        one.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert one.problem == ""
    with Recording(str(path)) as recording:
        assert len(list(recording.frames())) == 40
        assert (recording.problem, recording.findings()) == ("", None)


def test_a_limit_of_a_files_size_makes_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of made frames: a second of this machine in which many programs start may take more than a small file has left."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of what is imported from here on: it would be cut, and no import could read it
    frames, judging = frames_made(400), Unwatched(None)
    recorder = stream_recorder.Recorder(judging, Command([]), path=str(tmp_path / "a.gputop"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with Loop(Given([HEADER, *frames]), judging, recorder) as loop:
            loop.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert recorder.problem == ""
    paths = [tmp_path / name for name in ("a.gputop", *(f"a.{number}.gputop" for number in range(2, len([*tmp_path.iterdir()]) + 1)))]
    assert len(paths) > 2
    assert all(path.stat().st_size <= 40_000 for path in paths)
    found, told = read(*paths)
    assert [frame.seq for frame in found] == [frame.seq for frame in frames]
    assert told == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_collector_that_dies_is_started_again(tmp_path: Path, job: tuple[list[str], Callable[[], None]], number: signal.Signals) -> None:
    command, end = job
    path = tmp_path / "a.gputop"
    record = Record(tmp_path, "-o", str(path), "--", *command)
    until(lambda: path.exists() and path.stat().st_size > 3000)
    first = record.collector
    os.kill(first, number)
    record.wait_said("the collector runs again")
    assert record.collector not in (0, first)
    size = path.stat().st_size
    until(lambda: path.stat().st_size > size + 1500)
    end()
    assert record.process.wait(PATIENCE_S) == 7
    found, told = read(path)
    assert sum(frame.seq == 0 for frame in found) == 2
    assert any(reason.startswith("the collector ended (") for _, reason in told)
    assert "the collector ended" in record.said.splitlines()[-1]
    problems = explain_files([str(path)], Span()).problems
    assert any(line.startswith("no data for ") and "the collector ended" in line for line in problems)


STILL = """
import sys
from gputop import cli
from gputop.commands import record
record.SILENT_S = 0.5
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_collector_that_gives_nothing_is_told(tmp_path: Path) -> None:
    path, said = tmp_path / "a.gputop", tmp_path / "said"
    with said.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", STILL, "record", "--no-ebpf", "-o", str(path)], stderr=file)
    until(lambda: path.exists() and path.stat().st_size > 3000)
    (collector,) = (pid for pid in tree(process.pid) if pid != process.pid)
    os.kill(collector, signal.SIGSTOP)
    until(lambda: "no reading for" in said.read_text())
    os.kill(collector, signal.SIGCONT)
    until(lambda: "readings come again" in said.read_text())
    process.terminate()
    assert process.wait(PATIENCE_S) == 1, "something is missing"
    assert "s are missing (the collector gave no reading)" in said.read_text()


def test_killed_at_any_moment_at_most_the_last_second_is_lost(tmp_path: Path) -> None:
    dice = random.Random(35)
    for i in range(5):
        path, most_bytes = tmp_path / f"{i}.gputop", dice.randint(2_000, 8_000)
        record = Record(tmp_path, "-o", str(path), "--interval", "0.02")
        until(lambda path=path, size=most_bytes: path.exists() and path.stat().st_size > size)  # type: ignore[misc]
        collector = record.collector
        record.process.kill()
        killed_ns = time.monotonic_ns()
        record.process.wait()
        with Recording(str(path)) as recording:
            assert killed_ns - recording.end_ns < at_this_load(1.6) * SECOND_NS
            assert "cut short" in recording.problem
            assert list(recording.frames())
        until(lambda collector=collector: not command_of(collector))  # type: ignore[misc]


def test_collect_says_in_a_line_that_its_disk_is_full(small: Path) -> None:
    fill(small / "other")
    with (small / "stream").open("wb") as file:
        done = subprocess.run(
            [*GPUTOP, "collect", "--no-ebpf"], stdout=file, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "gputop: cannot write the stream (No space left on device): send it to a pipe or a file with room\n"


def test_collect_ends_without_a_word_when_its_reader_has_enough() -> None:
    command = f"{sys.executable} -m gputop collect --no-ebpf | head -c 100 >/dev/null"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
