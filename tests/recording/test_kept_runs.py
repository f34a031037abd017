"""Runs kept beside a recording, by several recorders at once: real processes that append rows while others remove old ones."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from gputop.findings.runs import Run
from gputop.stream import runs
from tests.wait import PATIENCE_S

ROWS, STARTS = 60, 30
DAY_S = 86_400.0

RECORDS = """
import sys, time
from types import SimpleNamespace
from gputop.stream.runs import KeptRuns
from tests.recording.test_kept_runs import ROWS, run_of
kept, first = KeptRuns(sys.argv[1], 1e9), int(sys.argv[2])
print("begun", flush=True)
sys.stdin.readline()
for i in range(ROWS):
    time.sleep(0.01)  # rows come while the other process begins its file anew, and not all before
    kept.note(SimpleNamespace(fed_ns=i * 10**10, runs=lambda: ([run_of(first + i, time.time())], [])))
assert not kept.problem, kept.problem
"""
STARTS_ANEW = """
import sys, time
from gputop.stream.runs import KeptRuns
from tests.recording.test_kept_runs import STARTS, DAY_S, run_of
import msgspec, os
rename = os.rename
os.rename = lambda *paths: (time.sleep(0.02), rename(*paths))  # a disk that is slow in the worst moment
print("begun", flush=True)
sys.stdin.readline()
for i in range(STARTS):
    with open(KeptRuns(sys.argv[1], DAY_S).path, "ab") as file:  # one more that is too old, for the next start
        file.write(msgspec.json.encode(run_of(10**6 + i, time.time() - 9 * DAY_S)) + b"\\n")
    assert not KeptRuns(sys.argv[1], DAY_S).problem
"""


def run_of(pid: int, end_s: float) -> Run:
    return Run(
        start_unix_s=end_s - 60.0, end_unix_s=end_s, pid=pid, program="train.py", arguments="", world=1, gpu="", gpus=0, torch="",
        step_ms=50.0, stretches_ms=[], gpu_total_s=None, gpu_lost_s=None, by_cause={}, setting={},
    )  # fmt: skip


def test_no_row_is_lost_where_recorders_append_while_others_remove_old_ones(tmp_path: Path) -> None:
    recording = str(tmp_path / "node.gputop")
    place = Path(runs.path_beside(recording))
    place.write_bytes(msgspec.json.encode(run_of(1, time.time())) + b"\n")
    ways = [(RECORDS, "1000"), (RECORDS, "2000"), (STARTS_ANEW, "0")]
    started = [subprocess.Popen([sys.executable, "-c", code, recording, first], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for code, first in ways]  # fmt: skip
    try:
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == b"begun\n"
        for one in started:
            assert one.stdin is not None
            one.stdin.write(b"\n")
            one.stdin.flush()
        assert [one.wait(PATIENCE_S) for one in started] == [0, 0, 0]
    finally:
        for one in started:
            one.kill()
            one.communicate()
    kept = {one.pid for one in runs.read(str(place))}
    assert {*range(1000, 1000 + ROWS), *range(2000, 2000 + ROWS), 1} <= kept
    assert not os.path.exists(f"{place}.unfinished")


def test_a_recorder_that_holds_the_file_and_is_stopped_keeps_no_other_one_from_its_rows(tmp_path: Path) -> None:
    recording = str(tmp_path / "node.gputop")
    kept = runs.KeptRuns(recording, DAY_S)
    held = os.open(kept.path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        kept._append([run_of(7, time.time()), run_of(8, time.time() - 9 * DAY_S)])
        assert [one.pid for one in runs.read(kept.path)] == [8, 7]
        assert [one.pid for one in runs.KeptRuns(recording, DAY_S).past] == [7]
        assert [one.pid for one in runs.read(kept.path)] == [8, 7], "the old one stays until a start that has the file alone"
    finally:
        os.close(held)
    runs.KeptRuns(recording, DAY_S)
    assert [one.pid for one in runs.read(kept.path)] == [7]
