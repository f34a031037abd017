"""The place before crowds, as the kernel keeps it: in a process of its own, for a test's is not to be raised."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_LANES = """
import os, threading
from gputop.priority import BEAT, WATCHER, raise_priority
from gputop.sources.nvml.lane import follow_priority

raised = threading.Event()

def lane():
    raised.wait()
    inherited = os.sched_getparam(0).sched_priority
    follow_priority()
    print(inherited, os.sched_getparam(0).sched_priority)

raise_priority(WATCHER)
thread = threading.Thread(target=lane)
thread.start()
raise_priority(BEAT)
raised.set()
thread.join()
"""


def test_lanes_have_the_beats_rank_though_they_began_before_it() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    done = subprocess.run([sys.executable, "-c", _LANES], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["2", "3"]
