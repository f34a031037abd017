"""A job and hogs on a CPU that the container calls cpu0, and somebody who runs on the CPU that really has that number."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.require import require
from tests.stubs.build import build
from tests.wait import PATIENCE_S
from tests.workloads import lxcfs
from tests.workloads.hogs import SOURCE

SECONDS = 9.0
pytestmark = pytest.mark.soak
_JUDGED = """
import json, sys
from gputop.sources.host import HostSource
from gputop.sources import Settings
from tests.corpus.judging import judge
from tests.corpus.runs import record

modes = {"/proc": ["--no-ebpf"], "eBPF": []}
run, state = record("cpu-contention", float(sys.argv[1]), modes), HostSource(Settings()).open()
outcomes = [judge(run, mode) for mode in modes]
told = [[outcome.cause, sorted({name for name, _ in outcome.culprits.values()})] for outcome in outcomes]
print(json.dumps([told, state.state, state.reason]))
"""


def test_nobody_is_blamed_for_the_number_of_a_cpu() -> None:
    """Neither by /proc nor by the probes, which watch one run."""
    require("torch", "cc", "ebpf")
    if os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2 or not lxcfs.may_unshare():
        pytest.skip("needs root, two CPUs and mounts of its own")
    first, *_, last = sorted(os.sched_getaffinity(0))
    innocent = [str(build(SOURCE, "render", program=True)), "300", "1"]
    with lxcfs.inside(last) as through, subprocess.Popen(["taskset", "-c", str(first), *innocent]) as beside:
        try:
            command = [*through, sys.executable, "-c", _JUDGED, str(SECONDS)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=3 * PATIENCE_S, check=True)
        finally:
            beside.kill()
    told, state, reason = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == 2
    for cause, guilty in told:
        assert cause == "cpu-contention"
        assert {"fluent-bit", "node_exporter"} <= set(guilty)
        assert "render" not in guilty
    assert (state, "no numbers of single CPUs: /proc/stat is mounted over" in reason) == ("partial", True)
