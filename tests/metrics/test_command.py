"""`gputop exporter` as a program, before a simulated GPU."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gputop.commands.exporter import address
from gputop.demo.stage import staged
from gputop.metrics.prometheus import TextFile
from gputop.recording.reader import Recording
from gputop.sources import simulated
from gputop.stream.kept import explanation
from gputop.system.errors import UserError
from tests.metrics.hostile import hostile
from tests.ports import free_port
from tests.wait import PATIENCE_S, at_this_load, until

EXPORTER = [sys.executable, "-m", "gputop", "exporter", "--no-ebpf"]


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """In which a collector sees two simulated GPUs."""
    fd = simulated.create(2)
    yield {**os.environ, simulated.VARIABLE: f"/proc/{os.getpid()}/fd/{fd}"}
    os.close(fd)


@contextmanager
def running(environment: dict[str, str], *flags: str) -> Iterator[subprocess.Popen[str]]:
    one = subprocess.Popen([*EXPORTER, *flags], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield one
    finally:
        one.kill()
        one.wait()


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def test_it_serves_and_ends_at_once(environment: dict[str, str]):
    with running(environment, "--listen", "127.0.0.1:0", "--node", "n1", "--level", "gpu") as one:
        assert one.stderr is not None
        url = one.stderr.readline().split()[-1]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)
        until(lambda: 'gputop_gpu_utilization_ratio{gpu="1",node="n1"' in scrape(url))
        assert "gputop_trainer" not in scrape(url)
        assert scrape(url.replace("/metrics", "/-/healthy")) == "ok\n"
        one.send_signal(signal.SIGTERM)
        assert one.wait(PATIENCE_S) == 0
        assert one.stderr.read() == ""


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_hostile_clients_keep_nobody_out_and_cost_no_memory(environment: dict[str, str]):
    """Twice as many as `MOST_CONNECTIONS` would be as well: the oldest must go."""
    with running(environment, "--listen", "127.0.0.1:0") as one:
        assert one.stderr is not None
        url = one.stderr.readline().split()[-1]
        until(lambda: "gputop_gpu_utilization_ratio" in scrape(url))
        before, most, took = rss_bytes(one.pid), 0, list[float]()
        with hostile(urlsplit(url).port or 0, 64) as made:
            until(lambda: len(made) > 200)
            for _ in range(20):
                began_s = time.monotonic()
                assert "gputop_gpu_utilization_ratio" in scrape(url)
                took.append(time.monotonic() - began_s)
                most = max(most, rss_bytes(one.pid))
        assert sorted(took)[len(took) // 2] <= at_this_load(1.0), took
        assert most - before < 20 << 20
        one.send_signal(signal.SIGTERM)
        assert one.wait(PATIENCE_S) == 0
        assert one.stderr.read() == ""


def test_a_file_for_node_exporter(environment: dict[str, str], tmp_path: Path):
    path = tmp_path / "gputop.prom"
    with running(environment, "--textfile", str(path)) as one:
        until(lambda: path.exists() and path.read_text().endswith("gputop_self_series_dropped 0.0\n"))
        assert "_created" not in path.read_text()
        assert os.listdir(tmp_path) == ["gputop.prom"]
        assert path.stat().st_mode & 0o777 == 0o644
        one.send_signal(signal.SIGINT)
        assert one.wait(PATIENCE_S) == 0
    assert os.listdir(tmp_path) == [], "what nobody writes any more must not be told as now"


def collectors_of(pid: int) -> list[str]:
    """Command lines of the collectors that a process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = [Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0") for child in children]
    return [" ".join(line) for line in lines if "gputop.collector" in line]


@pytest.mark.parametrize("command", ["record", "watch"])
def test_one_process_records_or_watches_alerts_and_serves_by_one_collector(command: str, tmp_path: Path):
    told, path = tmp_path / "told", tmp_path / "a.gputop"
    with staged("too-few-workers", 60.0) as staging:
        flags = ["--no-ebpf", "--metrics", "127.0.0.1:0", "--alert", f"exec:sh -c 'cat >> {told}'", "--alert-on", "low"]
        argv = [sys.executable, "-m", "gputop", command, *flags, *(["-o", str(path)] if command == "record" else [])]
        with subprocess.Popen(argv, env=staging, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as one:
            assert one.stderr is not None
            url = one.stderr.readline().split()[-1]
            until(lambda: told.exists() and '"event":"begin"' in told.read_text())
            until(lambda: re.search(r'gputop_incidents{[^}]*} 1', scrape(url)))
            assert 'gputop_gpu_utilization_ratio{gpu="0"' in scrape(url)
            assert len(collectors_of(one.pid)) == 1
            one.send_signal(signal.SIGTERM)
            assert one.wait(PATIENCE_S) == 0
            said = one.stderr.read()
    if command == "record":
        assert "gputop explain" in said
        with Recording(str(path)) as recording:
            known = explanation(recording)
            assert recording.findings()
            assert known is None or known.incidents


def test_metrics_of_a_recorder_need_an_address_that_is_free(environment: dict[str, str], tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        argv = [sys.executable, "-m", "gputop", "record", "--no-ebpf", "--metrics", f"127.0.0.1:{taken.getsockname()[1]}"]
        one = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert one.returncode == 1
    assert "cannot listen on 127.0.0.1" in one.stderr
    assert len(one.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == [], "nothing was begun"


def test_it_tells_incidents_to_who_asks(tmp_path: Path):
    told = tmp_path / "told"
    with staged("too-few-workers", 60.0) as staging:
        flags = ["--textfile", str(tmp_path / "a.prom"), "--alert", f"exec:sh -c 'cat >> {told}'", "--alert-on", "low"]
        with running(staging, *flags) as one:
            until(lambda: told.exists() and '"event":"begin"' in told.read_text())
            one.send_signal(signal.SIGTERM)
            assert one.wait(PATIENCE_S) == 0


def test_a_file_is_never_half_there(tmp_path: Path):
    path = tmp_path / "a.prom"
    file = TextFile(str(path))
    with path.open() as reader:
        file.write(b"new")
        assert reader.read() == ""
    path.unlink()
    (tmp_path / "elsewhere").write_text("kept")
    path.symlink_to(tmp_path / "elsewhere")
    file.write(b"newer")
    assert (path.read_text(), (tmp_path / "elsewhere").read_text()) == ("newer", "kept")
    with pytest.raises(UserError, match="No such file"):
        TextFile(str(tmp_path / "none" / "a.prom"))
    with pytest.raises(UserError, match=r"only files that end in \.prom"):
        TextFile(str(tmp_path / "a.txt"))


def test_beyond_this_machine_it_warns_in_a_line(environment: dict[str, str]):
    with running(environment, "--listen", f":{free_port()}") as one:
        assert one.stderr is not None
        assert "can read the metrics" in one.stderr.readline()


def refused(environment: dict[str, str], *flags: str) -> tuple[int, str]:
    done = subprocess.run([*EXPORTER, *flags], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.returncode, done.stderr


def test_what_cannot_be_is_told_in_a_line(environment: dict[str, str], tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, why = refused(environment, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (code, "Address already in use" in why) == (1, True)
    assert refused(environment, "--listen", "nonsense")[0] == 2
    assert refused(environment, "--otlp", "nonsense")[0] == 2
    pair = ["--tls-cert", "x", "--tls-key", str(tmp_path / "none")]
    assert "--tls-cert is for --listen" in refused(environment, "--textfile", str(tmp_path / "a.prom"), *pair)[1]
    assert "need each other" in refused(environment, *pair[:2])[1]
    assert "No such file" in refused(environment, *pair)[1]


@pytest.mark.parametrize(
    ("text", "where"), [("127.0.0.1:9838", ("127.0.0.1", 9838)), (":80", ("", 80)), ("[::1]:0", ("::1", 0)), ("host:1", ("host", 1))]
)
def test_addresses(text: str, where: tuple[str, int]):
    assert address(text) == where
