"""gputop record and gputop mark, as processes: around a command, for a time, ended by signals; and replay's stream of what they wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop import cli
from gputop.commands.options import size
from gputop.model.frame import Frame
from gputop.recording.format import FormatError, pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.sources import Beat, Settings
from gputop.sources.marks import MarksSource, bound, places
from gputop.system.errors import UserError
from tests.pty.terminal import Pty
from tests.recording.made import HEADER, SECOND, Session
from tests.recording.test_columns import coarse
from tests.wait import PATIENCE_S

GPUTOP = [sys.executable, "-m", "gputop"]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of our own, so that no other collector hears our markers."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    monkeypatch.setattr("gputop.sources.marks.places", lambda uid: [path for path in places(uid) if path.startswith(f"{tmp_path}/")])
    monkeypatch.setattr("gputop.sources.marks.bound", lambda pid="self": [path for path in bound(pid) if path.startswith(f"{tmp_path}/")])
    return path


def record(*argv: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*GPUTOP, "record", "--no-ebpf", *argv], stderr=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload,no-any-return]


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def so_far(path: Path, look: Callable[[Recording], object]) -> object:
    """What a recording that grows tells now; None while it has no header yet."""
    try:
        with Recording(str(path)) as recording:
            return look(recording)
    except FormatError:
        return None


def frames_of(path: Path) -> list[Frame]:
    with Recording(str(path)) as recording:
        assert recording.problem == ""
        return list(recording.frames())


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
def test_around_a_command_its_exit_code_is_passed_on(tmp_path: Path, command: str, code: int) -> None:
    path = tmp_path / "a.gputop"
    done = record("-o", str(path), "--", "sh", "-c", f"sleep 0.5; {command}")
    _, err = done.communicate(timeout=PATIENCE_S)
    assert done.returncode == code
    assert str(path) in err
    frames = frames_of(path)
    assert len(frames) >= 3
    assert frames[0].key
    assert os.getpid() in {proc.pid for frame in frames for proc in frame.procs}  # the first has the GPUs' processes, and few others


def test_a_command_does_not_get_our_priority(tmp_path: Path) -> None:
    """We ask for a place before crowds; whoever is watched keeps his own."""
    if os.geteuid() != 0:
        pytest.skip("not root")
    told = tmp_path / "told"
    ask = f"import os, pathlib; pathlib.Path({str(told)!r}).write_text(str([os.sched_getscheduler(p) for p in (0, os.getppid())]))"
    process = record("-o", str(tmp_path / "a.gputop"), "--", sys.executable, "-c", ask)
    process.communicate(timeout=PATIENCE_S)
    assert told.read_text() == str([os.SCHED_OTHER, os.SCHED_RR])


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    done = record("-o", str(tmp_path / "a.gputop"), "--", "/no/such/program")
    _, err = done.communicate(timeout=PATIENCE_S)
    assert done.returncode == 127
    assert "cannot run /no/such/program: No such file" in err
    assert "Traceback" not in err
    assert not (tmp_path / "a.gputop").exists(), "the name is free for another try"


BROKEN = """
import sys
from gputop import cli
from gputop.recording.writer import Rotation
add, first = Rotation.add, []
def odd(self, frame):
    first.append(frame.t_ns)
    return add(self, frame) if frame.t_ns < first[0] + 300_000_000 else {}["odd"]
Rotation.add = odd
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_bug_of_the_recorder_costs_the_command_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = f"sleep 1; echo ran > {tmp_path}/told; exit 5"
    command = [sys.executable, "-c", BROKEN, "record", "-o", str(tmp_path / "a.gputop"), "--", "sh", "-c", job]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 5
    assert (tmp_path / "told").read_text() == "ran\n"
    assert "this is a bug: KeyError: 'odd'" in done.stderr
    assert "the command runs on" in done.stderr


UNJUDGED = """
import sys
from gputop import cli
from gputop.diagnosis import Engine
Engine.follow = lambda *_: {}["odd"]
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_bug_of_the_diagnosis_costs_what_it_finds_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    command = [sys.executable, "-c", UNJUDGED, "record", "-o", str(tmp_path / "a.gputop"), "--", "sh", "-c", "sleep 1; exit 5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 5
    assert done.stderr.count("this is a bug: KeyError: 'odd'") == 1
    assert "recording goes on without the diagnosis" in done.stderr
    frames = frames_of(tmp_path / "a.gputop")
    assert (frames[-1].t_ns - frames[0].t_ns) / SECOND > 0.6


FULL = """
import sys
from gputop import cli
from gputop.recording import writer
write, count = writer.write_all, iter(range(4))
def full(*rest):
    if next(count, None) is None:
        raise OSError(28, "No space left on device")
    return write(*rest)
writer.write_all = full
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_full_disk_is_said_as_it_begins_and_in_the_end_with_where_the_frames_are(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, "record", "-o", str(tmp_path / "a.gputop"), "--interval", "0.02", "--duration", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert "pauses: No space left on device" in first
    assert " frames in " in last
    assert "s are missing (No space left on device)" in last


def test_a_command_that_may_not_be_run(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("true")
    done = record("-o", str(tmp_path / "a.gputop"), "--", str(tmp_path / "job"))
    _, err = done.communicate(timeout=PATIENCE_S)
    assert done.returncode == 126
    assert "job: Permission denied" in err


@pytest.mark.parametrize(("named", "code"), [("/no/such/python", 127), ("/dev/null", 126)])
def test_a_command_whose_interpreter_cannot_be_run(tmp_path: Path, named: str, code: int) -> None:
    job = tmp_path / "job"
    job.write_text(f"#!{named}\n")
    job.chmod(0o700)
    done = record("-o", str(tmp_path / "a.gputop"), "--", str(job))
    _, err = done.communicate(timeout=PATIENCE_S)
    assert done.returncode == code
    assert "job: the interpreter that it names: " in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-o", "-"], "gputop collect"),
        (["-o", "a.gputop", "--"], "no command after --"),
        (["-o", "a.gputop", "--", ""], "no command after --"),
    ],
)
def test_what_cannot_be_meant_is_said_at_once(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", *flags]) == 2
    assert said in capsys.readouterr().err


def test_no_name_is_no_file() -> None:
    with pytest.raises(UserError, match="a file without a name"):
        Writer("", HEADER)


def test_a_full_disk_leaves_nothing_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gputop.recording.writer.write_all", full)
    with pytest.raises(UserError, match="No space left"):
        Writer(str(tmp_path / "a.gputop"), HEADER)
    assert list(tmp_path.glob("*.gputop")) == []


SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
TOLD = """
import pathlib, signal, sys, time
def told(number, _):
    with open(sys.argv[1], "a") as file:
        file.write(f"{number}\\n")
    number == signal.SIGTERM and sys.exit(5)
for number in (1, 2, 10, 12, 15):
    signal.signal(number, told)
pathlib.Path(sys.argv[1]).touch()
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_end_it_with_a_whole_file(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "a.gputop"
    process = record("-o", str(path))
    wait_until(lambda: path.exists() and so_far(path, lambda found: len(list(found.frames())) >= 3))
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "Traceback" not in err
    assert len(frames_of(path)) >= 3


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_reach_the_command_and_the_recording_goes_on_with_it(tmp_path: Path, number: signal.Signals) -> None:
    path, told = tmp_path / "a.gputop", tmp_path / "told"
    process = record("-o", str(path), "--", sys.executable, "-c", TOLD, str(told), start_new_session=True)
    wait_until(told.exists)
    process.send_signal(number)
    wait_until(lambda: told.read_text() == f"{int(number)}\n")
    if number != signal.SIGTERM:
        process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5
    assert frames_of(path)


def test_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = [*GPUTOP, "record", "--no-ebpf", "-o", str(tmp_path / "a.gputop"), "--", sys.executable, "-c", TOLD, str(told)]
    with Pty(command) as terminal:
        wait_until(told.exists)
        terminal.send("\x03")
        wait_until(told.read_text)
        os.kill(terminal.pid, signal.SIGTERM)  # a SIGINT that is passed on, too, would come before it
        assert terminal.exit_code() == 5
    assert told.read_text() == f"{int(signal.SIGINT)}\n{int(signal.SIGTERM)}\n"


def test_a_lost_terminal_ends_a_whole_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    with Pty([*GPUTOP, "record", "--no-ebpf", "-o", str(path)]) as terminal:
        wait_until(lambda: path.exists() and path.stat().st_size > 1000)
        terminal.hang_up()
        assert terminal.exit_code() == 0
    assert frames_of(path)


def test_stopped_before_the_first_reading_the_command_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far, asked, begun = tmp_path / "ssh", tmp_path / "asked", tmp_path / "begun"
    far.write_text(f"#!/bin/sh\ntouch {asked}\nexec sleep 60\n")
    far.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    process = record("-o", str(tmp_path / "a.gputop"), "--host", "node", "--", "touch", str(begun))
    wait_until(lambda: asked.exists() and takes(process.pid, signal.SIGTERM))
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert err == "gputop: stopped before the first reading: nothing was recorded\n"
    assert not begun.exists()


def test_under_nohup_it_outlives_its_terminal(tmp_path: Path) -> None:
    process = subprocess.Popen(["nohup", *GPUTOP, "record", "--no-ebpf", "-o", str(tmp_path / "a.gputop")], stderr=subprocess.DEVNULL)
    wait_until(lambda: takes(process.pid, signal.SIGUSR2))  # the last that it learns to take
    assert not takes(process.pid, signal.SIGHUP)
    process.terminate()
    process.wait(PATIENCE_S)


def takes(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal (/proc/PID/status)."""
    (caught,) = (line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_time_ends_the_recording_and_not_the_command(tmp_path: Path) -> None:
    path, done = tmp_path / "a.gputop", tmp_path / "done"
    waits = f"until [ -e {done} ]; do sleep 0.05; done; exit 3"
    process = record("-o", str(path), "--duration", "0.5", "--", "sh", "-c", waits)
    assert process.stderr is not None
    assert process.stderr.readline().endswith("; the command runs on\n")
    done.touch()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert frames_of(path)


def test_for_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    process = record("-o", str(path), "--duration", "1.5")
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    frames = frames_of(path)
    assert 0.8 <= (frames[-1].t_ns - frames[0].t_ns) / SECOND <= 1.6, "a beat may come late, and none after the time"


def test_no_frame_of_a_stream_that_is_ahead_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, path = tmp_path / "stream", tmp_path / "a.gputop"
    frames = list(Session(1, 500, threads=2).frames(30))
    stream.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    assert stream.stat().st_size > 1 << 20  # far more than is read at once, or fits into a pipe
    far = tmp_path / "ssh"
    far.write_text(f"#!/bin/sh\ncat {stream}\nexec sleep 60\n")
    far.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    process = record("-o", str(path), "--host", "node")
    wait_until(lambda: so_far(path, lambda found: found.end_ns >= coarse(frames[-3]).t_ns))
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert [frame.seq for frame in frames_of(path)] == [frame.seq for frame in frames]


def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    path.write_text("mine")
    process = record("-o", str(path), "--duration", "1")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "exists already" in err
    assert err.count("\n") == 1
    assert path.read_text() == "mine"


def test_markers_reach_the_recording(tmp_path: Path, runtime: Path) -> None:
    path = tmp_path / "a.gputop"
    process = record("-o", str(path))
    wait_until(lambda: list(runtime.glob("gputop/marks-*.sock")))
    before = time.monotonic_ns()
    assert cli.main(["mark", "epoch", "3\x1b[2J"]) == 0
    after = time.monotonic_ns()
    wait_until(lambda: so_far(path, lambda found: found.marks))
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    with Recording(str(path)) as recording:
        (mark,) = recording.marks
    assert mark.text == "epoch 3·[2J"
    assert before - 10_000 <= mark.t_ns <= after
    assert not list(runtime.glob("gputop/marks-*.sock"))


def test_a_recording_that_somebody_deletes_is_no_success(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    process = record("-o", str(path))
    wait_until(lambda: path.exists() and path.stat().st_size > 1000)
    path.unlink()
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"{path} was deleted while it was recorded" in err


@pytest.mark.usefixtures("runtime")
def test_markers_of_many_at_once_all_arrive() -> None:
    """As from the ranks of a job."""
    source = MarksSource(Settings())
    source.open()
    sent = [threading.Thread(target=cli.main, args=(["mark", f"rank {i}"],)) for i in range(40)]
    for one in sent:
        one.start()
    found: list[str] = []

    def all_there() -> bool:
        found.extend(read_marks(source))
        return len(found) == len(sent)

    wait_until(all_there)
    for one in sent:
        one.join()
    source.close()
    assert sorted(found) == sorted(f"rank {i}" for i in range(40))


@pytest.mark.parametrize("shell", ["XDG_RUNTIME_DIR", "TMPDIR"])
def test_markers_find_a_recorder_that_has_other_folders(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a job's are, beside those of the shell that gputop was started from."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    for name in ("a", "b"):
        (tmp_path / name).mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as recorder:
        recorder.setenv(shell, str(tmp_path / "a"))
        recorder.setattr("tempfile.tempdir", None)
        source = MarksSource(Settings())
        source.open()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "b"))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert cli.main(["mark", "hello"]) == 0
    assert read_marks(source) == ["hello"]
    source.close()


def test_without_a_collector_a_marker_is_refused(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mark", "x"]) == 1
    err = capsys.readouterr().err
    assert "no gputop took the marker" in err
    assert str(runtime / "gputop") in err
    assert cli.main(["mark", " "]) == 2


def test_a_socket_whose_collector_is_gone_is_taken_away(runtime: Path) -> None:
    source = MarksSource(Settings())
    source.open()
    (left,) = runtime.glob("gputop/*.sock")
    stale = left.with_name("marks-1.sock")
    source.close()
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
        gone.bind(str(stale))
    assert cli.main(["mark", "x"]) == 1
    assert not stale.exists()


def read_marks(source: MarksSource) -> list[str]:
    frame = Frame(0, time.monotonic_ns())
    source.read(Beat(frame.t_ns, 0, False), frame)
    return [mark.text for mark in frame.marks]


def test_the_source_takes_what_is_a_marker_and_nothing_else(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    source = MarksSource(Settings())
    assert source.open().state == "ok"
    (path,) = runtime.glob("gputop/*.sock")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for junk in (b"", b"\xff" * 100, b"\x93" * 2000, b"\xff" * 9000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sending:
            sending.connect(str(path))
            sending.send(junk)
    capsys.readouterr()
    assert cli.main(["mark", "a" * 200]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main(["mark", "a" * 500]) == 0
    assert "200 characters" in capsys.readouterr().err
    assert cli.main(["mark", "a\udcff"]) == 0, "arguments that are no UTF-8"
    assert read_marks(source) == ["a" * 200, "a" * 200, "a\ufffd"]
    assert read_marks(source) == []
    source.close()


@pytest.mark.parametrize(("text", "value"), [("100M", 100 << 20), ("2g", 2 << 30), ("1.5 M", 3 << 19), ("1MiB", 1 << 20)])
def test_sizes(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize(
    "flags", ["--max-size 5", "--max-size x", "--duration 0", "--duration nan", "--max-files 3", "--max-size 1M --max-files 0"]
)
def test_wrong_usage(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", *flags.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_many_markers_at_once_are_all_taken() -> None:
    source = MarksSource(Settings())
    source.open()
    texts = [str(i) for i in range(8)]
    threads = [threading.Thread(target=cli.main, args=(["mark", text],)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_marks(source)) == texts
    source.close()
