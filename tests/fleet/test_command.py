"""`gputop --host LIST`: what it prints for people and for scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputop.findings.verdict import page_of
from gputop.fleet.summary import pack_summary
from tests.fleet.fakes import FakeSsh, ssh
from tests.fleet.nodes import fleet
from tests.wait import PATIENCE_S, until

assert ssh  # a fixture


def gputop(*words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gputop", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, "COLUMNS": "120"})


@pytest.fixture
def straggling(ssh: FakeSsh) -> FakeSsh:
    """Two nodes of a training whose rank 11 is late, and one that cannot be reached."""
    for sight in fleet(nodes=2, late=11):
        assert sight.summary is not None
        told = pack_summary(replace(sight.summary, unix_ns=time.time_ns()))
        Path(ssh.folder, sight.host).write_bytes(told)
        ssh.says(sight.host, f'cat "$D/header"; while :; do cat "$D/{sight.host}"; sleep 0.2; done')
    ssh.says("node03", "echo 'ssh: connect to host node03: No route to host' >&2; exit 255")
    return ssh


def test_once_prints_the_jobs_and_the_nodes(straggling: FakeSsh) -> None:
    assert straggling
    done = gputop("--host", "node[01-03]", "--once")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "train.py  16 of 16 ranks · 2 of 3 nodes" in lines[0]
    assert "STRAGGLER ← cpu-contention   the job loses 60% of its GPUs" in lines[1]
    assert "rank 11 (node02 GPU 3) holds 15 others; fluent-bit (903) took 1.4 of 8 CPUs" in lines[2]
    rows = [line for line in lines if line.startswith("node")]
    assert [row.split()[0] for row in rows] == ["node02", "node03", "node01"]
    assert "No route to host" in rows[1]
    assert "[Enter]" not in done.stdout


def test_one_object_for_a_script(straggling: FakeSsh) -> None:
    assert straggling
    done = gputop("--host", "node[01-03]", "--once", "--json")
    told: dict[str, Any] = json.loads(done.stdout)
    assert (told["schema"], [node["state"] for node in told["nodes"]]) == (1, ["up", "up", "silent"])
    assert "No route to host" in told["nodes"][2]["reason"]
    [job] = told["jobs"]
    assert (job["verdict"]["symptom"], job["verdict"]["cause"]) == ("straggler", "cpu-contention")
    assert job["verdict"]["help_url"] == page_of("cpu-contention")
    assert job["late"] == [{"rank": 11, "host": "node02", "pid": 1011, "gpus": [3]}]
    assert job["culprits"] == [{"pid": 903, "name": "fluent-bit", "cpu_s": 3.5}]
    assert {rank["does"] for rank in job["ranks"]} == {"late", "waits"}
    assert told["nodes"][0]["summary"]["gpus"][0][1] == "NVIDIA H100"


def test_a_file_of_hosts_and_no_host_that_answers(ssh: FakeSsh, tmp_path: Path) -> None:
    ssh.says("a", "exit 255")
    ssh.says("b", "exit 255")
    (tmp_path / "hosts").write_text("a slots=8\nb slots=8\n")
    done = gputop("--hosts", str(tmp_path / "hosts"), "--once")
    assert done.returncode == 1
    assert "no node answers" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--host", "node[1-2", "--once"], "node[1-2"), (["--hosts", "/nowhere", "--once"], "/nowhere"),
        (["--host", "a,b", "--pid", "1"], "--pid"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line(ssh: FakeSsh, words: list[str], told: str) -> None:
    assert ssh
    done = gputop(*words)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_signal_leaves_no_ssh_behind(ssh: FakeSsh) -> None:
    """One that still connects would go on for seconds, for it writes nothing that fails."""
    for host in ("a", "b"):
        ssh.says(host, f'echo $$ > "$D/{host}.pid"; exec sleep 60')
    with subprocess.Popen([sys.executable, "-m", "gputop", "--host", "a,b", "--json"], stdout=subprocess.DEVNULL) as viewer:
        until(lambda: all((ssh.folder / f"{host}.pid").exists() and (ssh.folder / f"{host}.pid").read_text() for host in ("a", "b")))
        viewer.send_signal(signal.SIGTERM)
        assert viewer.wait(PATIENCE_S) == 128 + signal.SIGTERM
    for host in ("a", "b"):
        pid = int((ssh.folder / f"{host}.pid").read_text())
        until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
