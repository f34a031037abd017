"""Who may send a marker to whom, with real other users; and what a marker may cost who sends it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputop import cli
from gputop.model.frame import Frame, Mark
from gputop.sources import Beat, Settings
from gputop.sources.marks import MOST_A_SECOND, MarksSource, bound, pack_mark, places, unpack_mark
from tests.wait import until

NOBODY, SOMEBODY = 65534, 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be others")


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A /tmp of our own, sticky as the real one and reached by all; nobody has a runtime directory."""
    path = Path(tempfile.mkdtemp(prefix="gt-", dir="/tmp"))
    path.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("gputop.sources.marks.places", lambda uid: [place for place in places(uid) if place.startswith(str(path))])
    # No other collector on this machine is to hear us.
    monkeypatch.setattr("gputop.sources.marks.bound", lambda pid="self": [name for name in bound(pid) if name.startswith(f"{path}/")])
    yield path
    shutil.rmtree(path)


def heard(source: MarksSource, t_ns: int | None = None) -> list[str]:
    frame = Frame(0, time.monotonic_ns() if t_ns is None else t_ns)
    source._due_ns = 0
    source.read(Beat(frame.t_ns, 0, False), frame)
    return [mark.text for mark in frame.marks]


@contextmanager
def opened() -> Iterator[MarksSource]:
    source = MarksSource(Settings())
    source.open()
    try:
        yield source
    finally:
        source.close()


def as_user(uid: int, do: Callable[[], object]) -> str:
    """What ``do`` gives, as text, done by a child that is that user for good."""
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        said = "it did not end"
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            said = str(do())
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


@contextmanager
def stranger(place: Path, kind: int = socket.SOCK_SEQPACKET) -> Iterator[Path]:
    """Somebody else listens under a name that fits; afterwards nothing was sent to it."""
    folder = place / "gputop"
    folder.mkdir()
    path = folder / "marks-1.sock"
    listening = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    os.chown(folder, NOBODY, NOBODY)
    try:
        os.seteuid(NOBODY)  # the kernel remembers who listens
        listening.bind(str(path))
        if kind == socket.SOCK_SEQPACKET:
            listening.listen(5)
    finally:
        os.seteuid(0)
    path.chmod(0o777)
    folder.chmod(0o777)
    with listening:
        yield path
        try:
            caller = listening.accept()[0] if kind == socket.SOCK_SEQPACKET else listening
            said = caller.recv(4096)
        except BlockingIOError:
            said = b""
        assert said == b""


@as_root
@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_DGRAM], ids=["seqpacket", "dgram"])
@pytest.mark.parametrize("who", [0, SOMEBODY], ids=["root", "a user"])
def test_a_stranger_with_a_fitting_name_hears_nothing(temporary: Path, who: int, kind: int) -> None:
    place = temporary / "evil"
    place.mkdir()
    place.chmod(0o755)
    with stranger(place, kind):
        assert as_user(who, lambda: cli.main(["mark", "secret"])) == "1"


@as_root
def test_a_file_of_ours_does_not_make_a_listener_ours(temporary: Path) -> None:
    """The socket's file may say what it likes (a file system of the stranger's own): the kernel knows who listens."""
    place = temporary / "evil"
    place.mkdir()
    place.chmod(0o755)
    with stranger(place) as path:
        os.chown(path, SOMEBODY, SOMEBODY)
        assert as_user(SOMEBODY, lambda: cli.main(["mark", "secret"])) == "1"
        os.chown(path, 0, 0)
        assert cli.main(["mark", "secret"]) == 1


_MOUNTS_OVER = """
import os, socket, subprocess, sys
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind(sys.argv[1])
print(subprocess.run(["mount", "--bind", sys.argv[2], sys.argv[1]]).returncode, flush=True)
sys.stdin.read()
"""


@as_root
def test_a_service_of_roots_that_a_stranger_mounts_under_a_fitting_name_is_sent_nothing(temporary: Path) -> None:
    """In a namespace of one's own anybody may mount any socket anywhere, and the kernel says truly that root listens."""
    place = temporary / "gputop"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as service:
        service.bind(str(temporary / "service"))
        service.listen(5)
        nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "unshare", "-Urm"]
        command = [*nobody, "/usr/bin/python3", "-c", _MOUNTS_OVER, str(place / "marks-1.sock"), str(temporary / "service")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as mounter:
            assert mounter.stdout is not None
            if mounter.stdout.readline() != "0\n":
                pytest.skip("no user namespaces here")
            assert cli.main(["mark", "secret"]) == 1
            mounter.communicate()
        with pytest.raises(BlockingIOError):
            service.accept()


@as_root
@pytest.mark.usefixtures("temporary")
def test_root_marks_for_root_and_no_user_for_another() -> None:
    with opened() as source:
        assert as_user(SOMEBODY, lambda: cli.main(["mark", "from a user"])) == "1"
        assert cli.main(["mark", "from root"]) == 0
        assert heard(source) == ["from root"]


@as_root
def test_only_its_user_and_root_may_speak_to_a_collector(temporary: Path) -> None:
    """Even where directory and socket are open to all."""
    with opened() as source:
        folder = temporary / "gputop-0"
        (path,) = folder.iterdir()
        folder.chmod(0o755)
        path.chmod(0o777)

        def speak() -> str:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sending:
                sending.connect(str(path))
                sending.send(pack_mark(Mark(1, "forged")))
                return "sent"

        assert as_user(NOBODY, speak) == "sent"
        assert heard(source) == []
        assert as_user(0, speak) == "sent"
        assert heard(source) == ["forged"]


@as_root
def test_a_name_in_tmp_that_a_stranger_took_costs_a_reason_and_no_marker(temporary: Path) -> None:
    taken = temporary / "gputop-0"
    for spoil in (lambda: taken.symlink_to("/etc"), lambda: taken.write_text(""), taken.mkdir):
        as_user(NOBODY, spoil)
        source = MarksSource(Settings())
        state = source.open()
        assert state.state == "ok"
        assert str(taken) in state.reason
        (made,) = temporary.glob("gputop-0-*")
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert str(made) in state.reason
        assert cli.main(["mark", "epoch 3"]) == 0
        assert heard(source) == ["epoch 3"]
        source.close()
        assert not made.exists()
        taken.rmdir() if taken.is_dir() and not taken.is_symlink() else taken.unlink()


@as_root
def test_after_sudo_the_socket_is_where_the_user_reaches_it(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(SOMEBODY))
    monkeypatch.setenv("SUDO_GID", str(SOMEBODY))
    with opened() as source:
        (path,) = (temporary / f"gputop-{SOMEBODY}").iterdir()
        assert {path.lstat().st_uid, path.parent.stat().st_uid} == {SOMEBODY}
        assert os.geteuid() == 0
        assert as_user(SOMEBODY, lambda: cli.main(["mark", "mine"])) == "0"
        assert as_user(NOBODY, lambda: cli.main(["mark", "theirs"])) == "1"
        assert cli.main(["mark", "by sudo"]) == 0
        assert heard(source) == ["mine", "by sudo"]
    assert not path.exists()


@as_root
def test_what_a_killed_collector_left_is_taken_away_by_the_next(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(SOMEBODY))
    monkeypatch.setenv("SUDO_GID", str(SOMEBODY))

    def leave() -> None:
        MarksSource(Settings()).open()
        os.kill(os.getpid(), signal.SIGKILL)

    def die() -> None:
        if (pid := os.fork()) == 0:
            leave()
        os.waitpid(pid, 0)

    as_user(SOMEBODY, die)  # as the user itself
    as_user(NOBODY, lambda: (temporary / f"gputop-{NOBODY}").mkdir(0o700))
    foreign = temporary / f"gputop-{NOBODY}" / "marks-7.sock"
    as_user(NOBODY, lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind(str(foreign)))
    (stale,) = (temporary / f"gputop-{SOMEBODY}").iterdir()
    with opened():
        assert not stale.exists()
        assert len(list((temporary / f"gputop-{SOMEBODY}").iterdir())) == 1
    assert foreign.exists(), "another user's are that user's"


def test_a_collector_that_is_stopped_costs_half_a_second_and_is_named(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uid = os.geteuid()
    folder = temporary / f"gputop-{uid}"
    folder.mkdir(mode=0o700)
    with opened() as source, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as full:
        full.bind(str(folder / "marks-12345.sock"))
        full.listen(0)
        callers = []
        for _ in range(3):
            callers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
            try:
                callers[-1].connect(str(folder / "marks-12345.sock"))
            except BlockingIOError:
                break
        began = time.monotonic()
        assert cli.main(["mark", "x"]) == 0
        assert time.monotonic() - began < 2
        assert "gputop 12345 has not taken the marker within 0.5 s" in capsys.readouterr().err
        assert heard(source) == ["x"]
        for caller in callers:
            caller.close()


def test_markers_are_bounded_in_size_and_rate_and_say_nothing_to_a_terminal(temporary: Path) -> None:
    with opened() as source:
        (path,) = (temporary / f"gputop-{os.geteuid()}").iterdir()
        callers = []
        for number in range(MOST_A_SECOND + 20):
            callers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            callers[-1].connect(str(path))
            callers[-1].send(pack_mark(Mark(1, f"\x1b]0;{number}\x07\n" + "x" * 500)))
        found = [text for _ in range(20) for text in heard(source, 5_000_000_000)]
        assert len(found) == MOST_A_SECOND
        assert found[3].startswith("·]0;3··x")
        assert {len(text) for text in found} == {200}
        assert len([text for _ in range(20) for text in heard(source, 6_000_000_000)]) == 20
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x93\0\xa1\xff", b"\x93\0\xa0" + b"\x91" * 1900 + b"\xc0"])
def test_a_message_that_is_no_marker_is_none(message: bytes) -> None:
    assert unpack_mark(message) is None


def test_where_a_name_is_too_long_for_a_socket_another_place_is_taken(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = temporary / ("x" * 90)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr("gputop.sources.marks.places", places)
    with opened() as source:
        assert len(source._path) < 108
        assert not list(deep.iterdir())


FOLDERS = [("", "/tmp"), ("/no/such/folder", "/tmp"), ("/proc/self/comm", "/tmp"), ("/var/tmp", "/var/tmp")]


@pytest.mark.parametrize(("given", "chosen"), FOLDERS)
def test_the_users_folder_for_temporary_files_is_taken_where_it_can_be(given: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", given)
    monkeypatch.delenv("TEMP", raising=False)
    monkeypatch.delenv("TMP", raising=False)
    assert places(1234)[-1] == f"{chosen}/gputop-1234"


def test_who_connects_and_says_nothing_is_not_waited_for(temporary: Path) -> None:
    with opened() as source:
        (path,) = (temporary / f"gputop-{os.geteuid()}").iterdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late:
            late.connect(str(path))
            assert heard(source, 1_000_000_000) == []
            late.send(pack_mark(Mark(1, "late")))
            assert heard(source, 1_300_000_000) == ["late"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect(str(path))
            assert heard(source, 2_000_000_000) == heard(source, 4_000_000_000) == []
            with pytest.raises(OSError, match="Broken pipe"):
                silent.send(pack_mark(Mark(1, "too late")))


@as_root
def test_a_whole_collector_started_by_sudo_takes_the_users_marker_and_removes_its_socket(temporary: Path) -> None:
    """Before it has left root as after."""
    user = pwd.getpwuid(NOBODY)
    environment = {**os.environ, "SUDO_UID": str(user.pw_uid), "SUDO_GID": str(user.pw_gid)}
    command = [sys.executable, "-m", "gputop", "collect", "--no-ebpf"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        folder = temporary / f"gputop-{NOBODY}"
        until(lambda: list(folder.glob("*.sock")))
        until(lambda: Path(f"/proc/{process.pid}").stat().st_uid == NOBODY)
        (path,) = folder.iterdir()
        assert as_user(NOBODY, lambda: cli.main(["mark", "hello"])) == "0"
        stream = b""
        while b"hello" not in stream:
            stream += (more := os.read(process.stdout.fileno(), 1 << 16))
            assert more
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert not path.exists()
