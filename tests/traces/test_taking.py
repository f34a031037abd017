"""Traces that are asked of processes which speak Kineto's protocol, of hostile ones, and of a real torch training."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from gputop.system.errors import Unavailable, UserError
from gputop.traces import environment, taking
from gputop.traces.kineto import Asked, Desk
from gputop.traces.reading import read
from gputop.traces.taking import Taken, Wanted, take
from tests.require import require
from tests.traces.made import kineto, training, write
from tests.wait import until

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
TRAIN = """
import os, time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, i): time.sleep(0.01); return torch.randn(32)
model = torch.nn.Linear(32, 8); opt = torch.optim.SGD(model.parameters(), 0.1); first = 'step'
for x in DataLoader(Slow(), 4, num_workers=1):
    opt.zero_grad(); model(x).sum().backward(); opt.step(); time.sleep(0.02); first and print(first, flush=True); first = ''
"""


@pytest.fixture
def folder() -> Iterator[str]:
    """A job's folder, with a short path."""
    path = environment.make_folder(f"/tmp/gputop-test-{os.getpid()}-{uuid.uuid4().hex[:6]}")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return write(tmp_path / "whole.json", kineto(training()))


@contextmanager
def job(folder: str, trace: str, how: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that can be asked; killed at the end."""
    child = subprocess.Popen([sys.executable, "-m", "tests.traces.job", trace, how], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **environment.variables(folder)})  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait()


def asked(pids: list[int], tmp_path: Path, **wanted: float) -> list[Taken]:
    """Ask for short traces."""
    return take(pids, Wanted(**{"seconds": 0.1, "timeout_s": 30.0, **wanted}), lambda pid: str(tmp_path / f"taken-{pid}.json"))


def test_each_rank_gives_its_trace(folder: str, trace: str, tmp_path: Path) -> None:
    with job(folder, trace) as one, job(folder, trace, "empty-first") as two:
        assert {one.pid, two.pid} <= set(environment.waiting())
        found = asked([one.pid, two.pid], tmp_path)
    assert [(each.pid, each.error) for each in found] == [(one.pid, None), (two.pid, None)]
    for each in found:
        assert each.file is not None
        assert read(each.file).steps == 10
        assert stat.S_IMODE(os.stat(each.file).st_mode) == 0o600
    assert not [name for name in os.listdir(folder) if name.startswith(("dynolog", taking.PREFIX))]


def test_a_profiler_of_the_scripts_own_goes_first(folder: str, trace: str, tmp_path: Path) -> None:
    with job(folder, trace, "busy") as one:
        assert asked([one.pid], tmp_path)[0].error is None


def test_an_answer_that_is_dropped_is_given_again(folder: str, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "BEGINS_WITHIN_S", 0.3)
    with job(folder, trace, "drops-first") as one:
        assert asked([one.pid], tmp_path)[0].error is None


@pytest.mark.parametrize(("how", "why"), [("cancels", "given up"), ("dies", "has ended")])
def test_a_job_that_does_not_deliver_has_a_reason(folder: str, trace: str, tmp_path: Path, how: str, why: str) -> None:
    with job(folder, trace, how) as one:
        assert why in str(asked([one.pid], tmp_path)[0].error)


def test_a_silent_or_stopped_job_has_a_reason(folder: str, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "ASKS_WITHIN_S", 0.5)
    with job(folder, trace, "silent") as one, job(folder, trace) as two:
        two.send_signal(signal.SIGSTOP)
        found = asked([one.pid, two.pid], tmp_path)
    assert "asked for nothing" in str(found[0].error)
    assert "stopped" in str(found[1].error)


def test_without_descriptors_there_is_a_reason(folder: str, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(taking, "Desk", refuses)
    with job(folder, trace) as one:
        assert "too many open files" in str(asked([one.pid], tmp_path)[0].error)


def test_a_process_without_the_variables_is_refused_with_what_to_do(tmp_path: Path) -> None:
    wait = [sys.executable, "-c", "print(flush=True); input()"]
    plain = subprocess.Popen(wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    shared = subprocess.Popen(wait, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "KINETO_USE_DAEMON": "1"})
    try:
        for child in (plain, shared):
            assert child.stdout is not None
            child.stdout.readline()  # its environment can be read once it runs
        found = asked([plain.pid, shared.pid], tmp_path)
    finally:
        for child in (plain, shared):
            child.communicate(b"\n")
    assert "gputop run" in str(found[0].error)
    assert "any local user" in str(found[1].error)


def test_hostile_datagrams_change_nothing(folder: str, trace: str, tmp_path: Path) -> None:
    random.seed(3)
    hostile = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    hostile.setblocking(False)
    hostile.bind(f"{folder}/dynoconfigclient{uuid.uuid4()}")
    unnamed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    unnamed.setblocking(False)
    with job(folder, trace) as one:
        own = environment.job_of(one.pid)
        with environment.opened(own) as descriptor, Desk(own, descriptor) as desk:
            sent = 0
            for i in range(1000):
                data = random.randbytes(random.choice([0, 1, 39, 40, 41, 56, 60, 4000, 70_000]))
                if i % 3 == 0:
                    data = (len(data)).to_bytes(8, sys.byteorder) + b"req".ljust(32, b"\0") + data
                try:
                    (hostile if i % 2 else unnamed).sendto(data, f"{folder}/dynolog")
                    sent += 1
                except OSError:
                    pass
                while (asked_ := desk.next()) is not None:
                    assert asked_.pid in (one.pid, os.getpid())
                    desk.answer(asked_)
                with suppress(BlockingIOError):
                    assert hostile.recv(1 << 14)[8:].rstrip(b"\0") == b"req", "an answer without a configuration, at most"
            assert sent > 500
            assert desk.refused > 400
        assert asked([one.pid], tmp_path)[0].error is None


@pytest.mark.parametrize("kind", [b"req", b"ctxt"])
def test_another_users_process_gets_no_answer(folder: str, kind: bytes) -> None:
    """By the kernel's word: root may state other credentials than its own."""
    require("net")
    own = environment.Job(os.getpid(), folder, os.getuid())
    body = struct.pack("@iiqi", 3, 1, 0, os.getpid())
    with environment.opened(own) as descriptor, Desk(own, descriptor) as desk, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asks:
        asks.bind(f"{folder}/dynoconfigclient{uuid.uuid4()}")
        asks.setblocking(False)
        for uid, refused in ((NOBODY, 1), (os.getuid(), 1 + (kind == b"ctxt"))):
            stated = struct.pack("3i", os.getpid(), uid, uid)
            message = struct.pack("@Q32s", len(body), kind) + body
            asks.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, stated)], 0, f"{folder}/dynolog")
            asked_ = desk.next()
            assert (asked_ is not None) is (uid == os.getuid() and kind == b"req")
            assert desk.refused == refused
            if uid == NOBODY:
                with pytest.raises(BlockingIOError):
                    asks.recv(1 << 14)
        assert kind == b"req" or asks.recv(1 << 14)[8:12] == b"ctxt"


def test_a_socket_that_a_killed_program_left_is_replaced_and_a_live_one_is_not(folder: str, trace: str, tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.bind(f"{folder}/dynolog")
    with job(folder, trace) as one:
        assert "another program answers" in str(asked([one.pid], tmp_path)[0].error)
        left.close()
        assert asked([one.pid], tmp_path)[0].error is None


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_a_program_that_ends_while_it_asks_leaves_no_socket(folder: str, trace: str, end: str) -> None:
    """A job that finds one without a listener asks for 10 s, and ends so much later."""
    asks = f"""
import os, threading, time
from gputop.traces.taking import Wanted, take
pid = int(input())
threading.Thread(target=take, args=([pid], Wanted(), str), daemon=True).start()
while not os.path.lexists("{folder}/dynolog"):
    time.sleep(0.01)
print("asks", flush=True)
{end}
"""
    with job(folder, trace, "silent") as one:
        done = subprocess.run([sys.executable, "-c", asks], input=f"{one.pid}\n", capture_output=True, text=True, cwd=ROOT, check=False,
                              timeout=120)  # fmt: skip
    assert (done.stdout, done.returncode) == ("asks\n", 0 if end == "pass" else -signal.SIGKILL)
    deadline = time.monotonic() + 30
    while os.path.lexists(f"{folder}/dynolog"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_folder_that_others_may_enter_is_refused(folder: str, trace: str, tmp_path: Path) -> None:
    with job(folder, trace) as one:
        os.chmod(folder, 0o755)
        assert "open to others" in str(asked([one.pid], tmp_path)[0].error)
        with pytest.raises(UserError, match="open to others"):
            environment.make_folder(folder)
        os.chmod(folder, 0o700)
        os.rename(folder, f"{folder}x")
        os.symlink(f"{folder}x", folder)
        try:
            assert asked([one.pid], tmp_path)[0].error is not None
        finally:
            os.unlink(folder)
            os.rename(f"{folder}x", folder)


def test_a_finished_file_that_is_a_link_is_not_followed(folder: str, tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", "x")
    own = environment.Job(os.getpid(), folder, os.getuid())
    case = taking._Case(own, os.open(folder, os.O_RDONLY), None, "gputop-trace-1")  # type: ignore[arg-type]
    os.symlink(secret, f"{folder}/gputop-trace-1_5.json")
    with pytest.raises(Unavailable, match="cannot be read"):
        taking._moved(case, "gputop-trace-1_5.json", str(tmp_path / "out.json"))
    assert not (tmp_path / "out.json").exists()


def test_a_job_that_writes_no_file_keeps_no_other_from_its_trace(folder: str, trace: str, tmp_path: Path) -> None:
    with job(folder, trace, "folder") as one, job(folder, trace) as two:
        found = asked([one.pid, two.pid], tmp_path)
    assert "no file of its own" in str(found[0].error)
    assert (found[1].error, found[1].file) == (None, str(tmp_path / f"taken-{two.pid}.json"))


def test_a_file_that_grows_while_it_is_copied_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "MOST_BYTES", 10)
    with open(write(tmp_path / "grown", "x" * 11), "rb") as source, pytest.raises(Unavailable, match="larger"):
        taking._copy(source.fileno(), str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


class Flood:
    """A socket, or a desk, at which there is always something more."""

    def __init__(self, what: object) -> None:
        self._what, self.taken = what, 0

    def recvmsg(self, *_: int) -> object:
        self.taken += 1
        assert self.taken < 100_000, "it is read for ever"
        return self._what

    next = recvmsg

    def fileno(self) -> int:
        return 0

    def answer(self, *_: object) -> None:
        pass


def test_datagrams_without_end_do_not_hold_up_what_else_is_done(folder: str) -> None:
    ended = subprocess.Popen(["true"])
    own = environment.Job(ended.pid, folder, os.getuid())
    desk = Desk(own, -1)
    desk._socket.close()
    desk._socket = Flood((b"x", [], 0, ""))  # type: ignore[assignment]
    assert desk.next() is None
    case = taking._Case(own, os.open(folder, os.O_RDONLY), desk, "gputop-trace-1")
    ended.wait()
    flood = Flood(Asked(1, os.getuid(), True, "x"))
    taking._attend({ended.pid: case}, {0: flood}, Wanted(), "gputop-trace-1", time.monotonic(), print)  # type: ignore[dict-item]
    os.close(case.folder)
    assert "has ended" in str(case.result)


def test_a_job_is_found_among_more_sockets_than_a_page_of_the_table_holds(folder: str) -> None:
    with ExitStack() as stack:
        for name in [*(f"{i:03}{'x' * 40}" for i in range(300)), f"dynoconfigclient{uuid.uuid4()}"]:
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(f"{folder}/{name}")
        assert os.getpid() in environment.waiting()


def test_the_folder_of_a_job_lies_where_no_other_user_may_exchange_it(monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = tempfile.mkdtemp(prefix="g")
    os.chmod(open_to_all, 0o777)
    for name in ("gputop", f"gputop-{os.geteuid()}"):
        os.mkdir(taken := os.path.join(open_to_all, name))
        os.chmod(taken, 0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", open_to_all)
    monkeypatch.setattr(tempfile, "tempdir", open_to_all)
    path = environment.make_folder()
    try:
        above = os.stat(os.path.dirname(path))
        assert above.st_uid == os.geteuid()
        assert not above.st_mode & 0o077
    finally:
        environment.remove(path)
        shutil.rmtree(open_to_all)


def test_a_configuration_of_the_users_own_stays() -> None:
    more, path = environment.added({"KINETO_LOG_LEVEL": "1", "KINETO_CONFIG": "/etc/mine.conf"})
    assert path is not None
    environment.remove(path)
    assert more.keys() == environment.variables(path).keys() - {"KINETO_CONFIG"}
    assert more["KINETO_LOG_LEVEL"] != "1", "a job without a daemon prints two lines a second at that level"


def test_a_folder_with_something_odd_in_it_is_emptied_of_what_is_ours(folder: str) -> None:
    for number in range(5):
        os.mkdir(f"{folder}/gputop-trace-{number}")
        write(Path(folder) / f"gputop-trace-{number}.json", "{}")
    environment.remove(folder)
    assert {*os.listdir(folder)} == {f"gputop-trace-{number}" for number in range(5)}


@pytest.fixture
def others(folder: str) -> Iterator[environment.Job]:
    """A job of another user, with its folder."""
    require("net")
    os.chown(folder, NOBODY, NOBODY)
    child = subprocess.Popen(["sleep", "60"], user=NOBODY, group=NOBODY, env=environment.variables(folder))
    try:
        yield environment.job_of(child.pid)
    finally:
        child.kill()
        child.wait()


def test_root_answers_a_job_of_another_user_with_that_users_rights(others: environment.Job) -> None:
    with environment.opened(others) as descriptor, Desk(others, descriptor):
        assert os.stat(f"{others.folder}/dynolog").st_uid == NOBODY
    assert os.geteuid() == 0
    assert not os.path.exists(f"{others.folder}/dynolog")


def test_root_puts_nothing_where_another_user_exchanged_the_folder(others: environment.Job) -> None:
    ours = tempfile.mkdtemp(prefix="gputop-ours-", dir="/tmp")
    os.chmod(ours, 0o755)
    with environment.opened(others) as descriptor:
        os.rename(others.folder, f"{others.folder}x")
        os.symlink(ours, others.folder)
        try:
            with pytest.raises(Unavailable), Desk(others, descriptor):
                pass
            assert os.listdir(ours) == []
        finally:
            os.unlink(others.folder)
            os.rename(f"{others.folder}x", others.folder)
            os.rmdir(ours)


def test_a_job_whose_mounts_are_its_own_is_asked_in_its_folder(folder: str, trace: str, tmp_path: Path) -> None:
    """As in a service with PrivateTmp: its root is ours, and its /tmp is not."""
    require("net")
    os.chmod(folder, 0o700)
    mounted = f'mount -t tmpfs -o mode=700 none {folder} && exec "$@"'
    child = subprocess.Popen(["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, "-m", "tests.traces.job", trace], cwd=ROOT,
                             stdout=subprocess.PIPE, text=True, env={**os.environ, **environment.variables(folder)})  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert asked([child.pid], tmp_path)[0].error is None
        assert not os.path.exists(f"{folder}/dynolog")
    finally:
        child.kill()
        child.wait()


def test_run_leaves_no_folder_and_passes_the_exit_code_on() -> None:
    command = [sys.executable, "-m", "gputop", "run", "--", sys.executable, "-c",
               "import os, sys; print(os.environ['KINETO_IPC_SOCKET_DIR']); sys.exit(7)"]  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KINETO")}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT, check=False, timeout=120)
    assert done.returncode == 7
    assert not os.path.exists(done.stdout.strip())


def test_env_prints_what_a_shell_can_take() -> None:
    path = f"/tmp/gputop-env-{os.getpid()}"
    script = f'eval "$({sys.executable} -m gputop env --folder {path})"; echo $KINETO_CONFIG; cat $KINETO_CONFIG'
    try:
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, cwd=ROOT, check=True, timeout=120)
        assert done.stdout.split() == [f"{path}/kineto.conf", "ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1"]
    finally:
        environment.remove(path)
    assert not os.path.exists(path)


def test_a_path_too_long_for_sockets_is_refused() -> None:
    with pytest.raises(UserError, match="at most 59"):
        environment.make_folder("/tmp/" + "x" * 60)


def test_a_real_training_gives_its_trace_and_goes_on(folder: str, tmp_path: Path) -> None:
    require("torch")
    program = write(tmp_path / "train.py", TRAIN)
    with subprocess.Popen([sys.executable, program], env={**os.environ, **environment.variables(folder)}, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"step\n", "it begins"
            until(lambda: child.pid in environment.waiting())
            [found] = asked([child.pid], tmp_path, seconds=1.0, timeout_s=90.0)
            assert found.error is None, found.error
            assert found.file is not None
            said = read(found.file, child.pid)
            assert child.poll() is None
        finally:
            child.kill()
    assert said.steps >= 1
    assert 10 < said.loader_wait_pct < 90
    assert said.missing["kernels"]
    assert json.loads(Path(found.file).read_text())["traceEvents"]


def test_a_process_that_has_ended_is_named() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(Unavailable, match="has ended"):
        environment.job_of(child.pid)
