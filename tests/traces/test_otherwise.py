"""Traces of jobs that answer no socket of gputop's: by a dynolog that is there already, and by a script in the job."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gputop import cli
from gputop.system.errors import Unavailable
from gputop.traces import dynolog, environment, inject
from gputop.traces.reading import read
from gputop.traces.taking import Wanted, take
from tests.traces.made import kineto, training, write

ROOT = Path(__file__).resolve().parents[2]
KNOWN = {"processesMatched": [1], "activityProfilersTriggered": [1], "activityProfilersBusy": 0}
NO_PORT = 1  # nobody listens there


@contextmanager
def program(code: str, first: str = "", **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does ``first``, prints a line, and then does ``code`` for ever."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("KINETO")}
    text = f"import time\n{first}\nprint(flush=True)\nwhile True:\n    {code}"
    child = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env={**own, **environ})
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.communicate()


class Dynolog:
    """What stands in for dynolog: it writes the trace at once, where a job would, or answers ``says``."""

    def __init__(self, trace: str, says: bytes | None = None) -> None:
        self._trace, self._says = trace, says
        self._socket = socket.create_server(("localhost", 0))
        self.port = self._socket.getsockname()[1]
        self.asked: list[dict[str, object]] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            link, _ = self._socket.accept()
            with link:
                (size,) = struct.unpack("@i", link.recv(4))
                self.asked.append(json.loads(link.recv(size)))
                settings = dict(line.split("=", 1) for line in str(self.asked[-1]["config"]).splitlines())
                answer = json.dumps(KNOWN).encode() if self._says is None else self._says
                link.sendall(struct.pack("@i", len(answer)) + answer if self._says is None else answer)
            if self._says is None:
                [pid] = self.asked[-1]["pids"]  # type: ignore[misc]
                target = settings["ACTIVITIES_LOG_FILE"].replace(".json", f"_{pid}.json")
                shutil.copy(self._trace, f"{target}.part")
                os.rename(f"{target}.part", target)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return write(tmp_path / "whole.json", kineto(training()))


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_dynolog_that_is_there_is_asked(trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_folder: bool) -> None:
    """It serves a job on Kineto's shared socket, or the folder that the job was given."""
    daemon = Dynolog(trace)
    monkeypatch.setattr(dynolog.owner, "__defaults__", (daemon.port, "/"))
    monkeypatch.setattr(dynolog.ask, "__defaults__", (daemon.port,))
    folder = environment.make_folder(f"/tmp/gputop-test-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    served = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    served.bind(f"{folder}/{environment.NAME}")
    environ = environment.variables(folder) if has_folder else {environment.SWITCH: "1"}
    try:
        with program("time.sleep(1)", **environ) as child:
            [found] = take([child.pid], Wanted(0.1, timeout_s=30.0), lambda pid: str(tmp_path / f"{pid}.json"))
    finally:
        served.close()
        environment.remove(folder)
    assert found.error is None
    assert found.file is not None
    assert read(found.file).steps == 10
    assert daemon.asked[0]["fn"] == "setKinetOnDemandRequest"
    assert daemon.asked[0]["pids"] == [child.pid]


def test_without_a_dynolog_the_reason_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynolog.owner, "__defaults__", (NO_PORT, "/"))
    with program("time.sleep(1)", **{environment.SWITCH: "1"}) as child:
        [found] = take([child.pid], Wanted(0.1), str)
    assert "any local user may command" in str(found.error)


@pytest.mark.parametrize("says", [
    b"", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f{", struct.pack("@i", 2) + b"[]", struct.pack("@i", 9) + b"{", struct.pack("@i", 1) + b"{",
    struct.pack("@i", 2) + b"{}",
    struct.pack("@i", 29) + b'{"activityProfilersBusy":  1}', struct.pack("@i", 20) + b'{"status": "\x1b[31mx"}',
])  # fmt: skip
def test_a_dynolog_that_answers_oddly_has_a_reason(trace: str, says: bytes) -> None:
    with pytest.raises(Unavailable) as refused:
        dynolog.ask(7, os.getuid(), "A=1", Dynolog(trace, says).port)
    assert "\x1b" not in refused.value.reason


def test_a_dynolog_that_answers_a_byte_at_a_time_has_as_long_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynolog, "_WITHIN_S", 0.05)
    with socket.create_server(("localhost", 0)) as server:
        def drip() -> None:
            link, _ = server.accept()
            with link, suppress(OSError):
                link.sendall(struct.pack("@i", 1 << 15))
                while True:
                    link.sendall(b" ")
                    time.sleep(0.01)

        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(Unavailable, match="does not answer"):
            dynolog.ask(7, os.getuid(), "A=1", server.getsockname()[1])


def test_another_users_program_on_dynologs_port_is_not_asked(trace: str) -> None:
    daemon = Dynolog(trace)
    assert dynolog.owner(daemon.port) == os.geteuid()
    if os.geteuid() == 0:
        dynolog.ask(7, 12345, f"ACTIVITIES_LOG_FILE={trace}.json", daemon.port)  # root's may be asked for anybody
    else:
        with pytest.raises(Unavailable, match="another user"):
            dynolog.ask(7, 12345, "A=1", daemon.port)
    with pytest.raises(Unavailable, match="no dynolog"):
        dynolog.ask(7, 0, "A=1", NO_PORT)


def test_a_table_with_another_users_listener_names_that_user(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    line = "   0: 0100007F:06F2 00000000:0000 {} 00000000:00000000 00:00000000 00000000  {}        0 1 1 0 100 0 0 10 0\n"
    (tmp_path / "proc/net/tcp").write_text("head\n" + line.format("0A", 0) + line.format("01", 9) + line.format("0A", 1000) + "odd\n")
    assert dynolog.owner(root=str(tmp_path)) == 1000


class Profiled:
    """What stands in for torch.profiler in a process without torch."""

    threads: list[str] = []
    refuses = ""

    def __init__(self, activities: list[str], with_stack: bool) -> None:
        self.activities, self.with_stack = activities, with_stack

    def start(self) -> None:
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.threads.append(threading.current_thread().name)

    stop = start

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(kineto(training()))


def fake_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch, profiler = types.ModuleType("torch"), types.ModuleType("torch.profiler")
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: False)  # type: ignore[attr-defined]
    profiler.ProfilerActivity = types.SimpleNamespace(CPU="CPU", CUDA="CUDA")  # type: ignore[attr-defined]
    profiler.profile = Profiled  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.profiler", profiler)


def scripted(tmp_path: Path) -> tuple[Path, Path]:
    """Run the script in this thread, as a job's main thread does; its trace and its failure."""
    path, failed = tmp_path / "trace.json", tmp_path / "failed"
    scope: dict[str, object] = {}
    exec(f"{inject.SCRIPT}\n_gputop(0.05, True, {str(path)!r}, {str(failed)!r})", scope)
    deadline = time.monotonic() + 30
    while not (path.exists() or failed.exists()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path, failed


def test_the_script_traces_in_the_main_thread_and_writes_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch)
    monkeypatch.setattr(Profiled, "threads", [])
    path, _ = scripted(tmp_path)
    assert read(str(path)).steps == 10
    assert Profiled.threads == ["MainThread", "MainThread"]
    assert os.listdir(tmp_path) == ["trace.json"]


def test_the_script_gives_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "not imported torch" in scripted(tmp_path)[1].read_text()
    fake_torch(monkeypatch)
    (tmp_path / "failed").unlink()
    monkeypatch.setattr(Profiled, "refuses", "the profiler is at work")
    assert "the profiler is at work" in scripted(tmp_path)[1].read_text()


def test_inject_needs_a_process_by_name_and_a_python_that_can(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["trace", "--inject"]) == 2
    assert "name its PID" in capsys.readouterr().err
    monkeypatch.setattr(inject, "LEAST_PYTHON", (9, 9))
    assert cli.main(["trace", str(os.getpid()), "--inject"]) == 1
    assert "cannot inject" in capsys.readouterr().err


def test_a_process_that_cannot_be_injected_has_a_reason_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inject, "LEAST_PYTHON", (3, 0))
    folders = []

    def refuses(_pid: int, script: str) -> None:
        folders.append(os.path.dirname(script))
        raise RuntimeError("another version of Python")

    monkeypatch.setattr(sys, "remote_exec", refuses, raising=False)
    with program("time.sleep(1)") as child:
        [without] = take([child.pid], Wanted(0.1), str)
        assert "without Kineto's variables" in str(without.error), "never without being asked for"
        [found] = take([child.pid], Wanted(0.1, inject=True), str)
    assert "another version of Python" in str(found.error)
    assert not os.path.exists(folders[0])


def test_a_script_that_may_still_run_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inject, "LEAST_PYTHON", (3, 0))
    scripts: list[str] = []
    monkeypatch.setattr(sys, "remote_exec", lambda _pid, script: scripts.append(script), raising=False)
    with program("time.sleep(1)") as child:
        [found] = take([child.pid], Wanted(0.1, timeout_s=0.2, inject=True), str)
    assert "main thread" in str(found.error)
    assert Path(scripts[0]).read_text() == ""
    shutil.rmtree(os.path.dirname(scripts[0]))


def test_links_in_the_places_of_a_script_lead_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The script's folder belongs to the process's user, while gputop may be root's."""
    monkeypatch.setattr(inject, "LEAST_PYTHON", (3, 0))
    monkeypatch.setattr(sys, "remote_exec", lambda _pid, _script: None, raising=False)
    other = tmp_path / "another's"
    other.write_text("secret")
    one = inject.Injection(os.getpid())
    one.begin("trace.json", 0.1, False)
    for name in (os.path.basename(inject.FAILED), "trace.py"):
        Path(one.folder, name).unlink(missing_ok=True)
        os.symlink(other, Path(one.folder, name))
    assert one.failed() == ""
    moved = tmp_path / "moved"
    os.rename(one.folder, moved)
    os.symlink(tmp_path, one.folder)
    (tmp_path / inject.FAILED).write_text("secret")
    assert one.failed() == ""
    one.end(False)
    assert other.read_text() == "secret"
    os.unlink(one.folder)


@pytest.mark.skipif(sys.version_info < inject.LEAST_PYTHON, reason="Python before 3.14 has no sys.remote_exec")
def test_a_running_process_is_injected(tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    torch.joinpath("__init__.py").write_text("class cuda:\n    is_initialized = staticmethod(lambda: False)\n")
    trace = write(tmp_path / "whole.json", kineto(training()))
    torch.joinpath("profiler.py").write_text(
        "import shutil\nclass ProfilerActivity:\n    CPU = CUDA = 1\nclass profile:\n    def __init__(self, **_): pass\n"
        f"    def start(self): pass\n    stop = start\n    def export_chrome_trace(self, path): shutil.copy({trace!r}, path)\n"
    )
    with program("time.sleep(0.01)", "import torch.profiler", PYTHONPATH=str(tmp_path)) as child:
        [found] = take([child.pid], Wanted(0.1, timeout_s=60.0, inject=True), lambda pid: str(tmp_path / f"{pid}.json"))
        assert child.poll() is None
    assert found.error is None
    assert found.file is not None
    assert read(found.file).steps == 10
    assert not [name for name in os.listdir("/tmp") if name.startswith("gputop-inject-") and os.stat(f"/tmp/{name}").st_uid == os.geteuid()]
