"""A job of a real Slurm: its nodes are found, and each is reached by a step beside the job's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fleet.sshd import GPUTOP
from tests.require import require
from tests.wait import PATIENCE_S

HERE = Path(__file__).parent


def test_the_nodes_of_a_job_are_watched(tmp_path: Path) -> None:
    require("net", "slurm")
    (tmp_path / "gputop").write_text(GPUTOP)
    (tmp_path / "gputop").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    words = ["unshare", "--net", "--mount", "--uts", "bash", str(HERE / "slurm.sh"), str(tmp_path)]
    command = [sys.executable, "-m", "gputop", "--job", "1", "--once", "--json", "--no-ebpf"]
    done = subprocess.run(
        [*words, *command], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert sorted(node["host"] for node in nodes) == ["n1", "n2", "n3", "n4"]
    assert [(node["state"], node["reason"]) for node in nodes] == [("up", None)] * 4
