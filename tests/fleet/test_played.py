"""A training over three nodes from end to end: each node plays its part of a recording, and diagnoses itself; the viewer names the rank."""

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

from gputop.model.frame import Frame, Header
from gputop.recording.writer import Writer
from tests.corpus import runs
from tests.corpus.accuracy import DATA
from tests.fleet.fakes import FakeSsh, ssh
from tests.fleet.splitting import by_rank
from tests.wait import PATIENCE_S, at_this_load

assert ssh  # a fixture
WITHIN_S = 5.0  # s from the onset until the rank is told, and the nodes' starts are so far apart at most


@pytest.fixture
def nodes(ssh: FakeSsh, tmp_path: Path) -> tuple[float, list[str]]:
    """(seconds from the start to the onset, hosts that play the ranks of a training; the last one is late)."""
    run = runs.load(DATA / "straggler-gc.xz")
    hosts = []
    for number, items in enumerate(by_rank(run.items("eBPF")).values()):
        header, *frames = items
        assert isinstance(header, Header)
        path = tmp_path / f"rank{number}.gputop"
        writer = Writer(str(path), header, lambda: b"")
        for frame in frames:
            assert isinstance(frame, Frame)
            writer.add(frame)
        writer.close()
        ssh.says(f"host{number}", f"exec {sys.executable} -m gputop collect --summary --from {path}")
        hosts.append(f"host{number}")
        begin_ns = frames[0].t_ns if isinstance(frames[0], Frame) else 0
    assert run.onset_ns is not None
    return (run.onset_ns - begin_ns) / 1e9, hosts


def test_the_rank_its_host_and_its_cause_are_told_within_seconds(nodes: tuple[float, list[str]]) -> None:
    onset_s, hosts = nodes
    command = [sys.executable, "-m", "gputop", "--host", ",".join(hosts), "--json"]
    told: list[dict[str, Any]] = []
    late: list[tuple[float, str, str]] = []  # when, which host, which cause
    begun_s = 0.0  # when the nodes began to play, which is some time after this: the viewer knows their ranks
    give_up_s = time.monotonic() + PATIENCE_S
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as viewer:
        assert viewer.stdout is not None
        for line in viewer.stdout:
            told.append(json.loads(line))
            begun_s = begun_s or (time.monotonic() if told[-1]["jobs"] else 0.0)
            for job in told[-1]["jobs"]:
                if job["verdict"]["symptom"] == "straggler":
                    late += [(time.monotonic() - begun_s, one["host"], job["verdict"]["cause"]) for one in job["late"]]
            if len(late) >= 2 or time.monotonic() > give_up_s:
                break
        viewer.send_signal(signal.SIGINT)
        viewer.stdout.read()
    assert {len(job["ranks"]) for one in told for job in one["jobs"] if job["size"] == 3 and job["late"]} == {3}
    assert {host for _, host, _ in late} == {"host2"}
    assert {cause for _, _, cause in late} == {"main-thread-preprocessing"}
    assert late[0][0] - onset_s < at_this_load(2 * WITHIN_S)
