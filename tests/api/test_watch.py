"""`gputop.watch`: what it gives, what it leaves alone, and how it ends. The collector is a recording that is played at once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import gputop
from gputop.api.objects import CompanionLine, Explanation, Incident, Snapshot
from gputop.api.watching import Watching
from tests.wait import PATIENCE_S, until

PLAYED = ["sh", "-c", 'cat "$0"; exec sleep 60']  # a collector: the recording at once, and then nothing more
IMPORTING = """
import os, signal, sys, threading
handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
before = set(sys.modules), dict(os.environ), list(sys.path), threading.active_count(), handlers, os.listdir("/proc/self/fd")
import gputop
after = os.environ, sys.path, threading.active_count(), {n: signal.getsignal(n) for n in handlers}, os.listdir("/proc/self/fd")
assert before[1:] == (dict(after[0]), *after[1:]), "the import changed something"
assert {"watch", "open", "mark", "sweep_loader", "Error"} <= set(dir(gputop))
print(*sorted(set(sys.modules) - before[0]))
"""
FORKING = """
import os, signal, sys
import gputop
from gputop.api.watching import Watching
watching = Watching(sys.argv[1:], None, "low").start()
child = os.fork()
if not child:
    try:
        watching.close()
        watching.explain()
    except gputop.Error as error:
        os._exit(40 + ("another process" in str(error)))
    os._exit(1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
watching.explain()
print(code, watching._child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Seen(NamedTuple):
    """A watch that has ended, the incidents that it told, what it answered meanwhile, and what the recording says."""

    watching: Watching
    told: list[Incident]
    explanation: Explanation
    snapshot: Snapshot
    expected: Explanation


@pytest.fixture(scope="module")
def seen(starving: str) -> Seen:
    with gputop.open(starving) as recording:
        expected = recording.explain(fine=True)
    told: list[Incident] = []
    with Watching([*PLAYED, starving], told.append, "medium") as watching:
        assert watching.wait(PATIENCE_S)
        until(lambda: (watching.ledger.gpu_total_s or 0.0) > (expected.ledger.gpu_total_s or 0.0) - 2.0)
        explanation, snapshot = watching.explain(), watching.snapshot()
    return Seen(watching, told, explanation, snapshot, expected)


def test_it_finds_what_explain_finds(seen: Seen) -> None:
    watching, told, explanation, snapshot, expected = seen
    assert (explanation.verdict.cause, watching.verdict.cause) == (expected.verdict.cause, "cpu-contention")
    assert explanation.ledger.lost_share == pytest.approx(expected.ledger.lost_share, abs=0.02)
    assert watching.ledger == watching.explain().ledger, "after the end it is whole, and so is the answer"
    assert sum(watching.ledger.by_cause.values()) == pytest.approx(watching.ledger.gpu_lost_s)
    assert [one.id for one in watching.incidents] == [one.id for one in explanation.incidents]
    assert {one.id for one in told} == {one.id for one in watching.incidents if one.severity in ("medium", "high")}
    assert len(told) == len({one.id for one in told}), "each is told once"
    assert told[0].fixes
    assert snapshot.host == "demo"
    assert snapshot.gpus[0]["util_pct"] is not None


def test_what_has_ended_has_ended(seen: Seen) -> None:
    watching = seen.watching
    watching.close()
    assert watching._child is not None
    assert not os.path.exists(f"/proc/{watching._child.pid}")
    with pytest.raises(gputop.Error, match="closed"):
        watching.snapshot()
    with pytest.raises(gputop.Error, match="started already"):
        watching.start()


def test_importing_costs_nothing_and_changes_nothing(tmp_path: Path) -> None:
    """About 2 ms; modules are counted, for they are as many on a busy machine."""
    done = subprocess.run([sys.executable, "-c", IMPORTING], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    loaded = done.stdout.split()
    assert [name for name in loaded if name.startswith("gputop")] == ["gputop", "gputop.system", "gputop.system.program"]
    assert len(loaded) <= 16, loaded


def test_a_fork_leaves_it_alone_and_it_ends_with_its_parent(starving: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, *PLAYED, starving], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    code, pid = map(int, done.stdout.split())
    assert code == 41, done.stderr
    until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_a_collector_that_cannot_run_is_a_problem_and_no_error() -> None:
    with Watching(["/no/such/collector"], None, "low") as watching:
        assert not watching.wait(60)
        assert "/no/such/collector" in watching.problem
        with pytest.raises(gputop.Error, match="/no/such/collector"):
            watching.explain()
    with pytest.raises(gputop.Error, match="has not been started"):
        Watching(PLAYED, None, "low").explain()


def test_wrong_arguments_are_told() -> None:
    for wrong in ({"severity": "grave"}, {"interval": 0.001}, {"gpus": ["x"]}):
        with pytest.raises(ValueError, match=r"severity|interval|invalid literal"):
            gputop.watch(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        gputop.mark(" ")


def test_a_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Incident) -> None:
        raise RuntimeError("not mine")

    one = Incident(
        1, 0.0, None, "input-bound", "disk-io", "high", 1.0, 7, 0, 1.0, None, None, "headline", "detail", (), (), (), (), ()
    )  # fmt: skip
    watching = Watching(PLAYED, fail, "low")
    with caplog.at_level(logging.ERROR, "gputop"):
        watching._take(CompanionLine(incidents=(one,)))
        watching._take(CompanionLine(incidents=(one,)))
    assert [record.exc_text for record in caplog.records if "not mine" in (record.exc_text or "")] == [caplog.records[0].exc_text]


def test_what_is_public_stays() -> None:
    assert sorted(gputop._PLACES) == ["Error", "mark", "open", "sweep_loader", "watch"]
