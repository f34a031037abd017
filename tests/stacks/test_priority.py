"""py-spy beside a screen that took its place before busy neighbours."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gputop.stacks import pyspy
from gputop.system.priority import WATCHER, raise_priority


def test_it_does_not_inherit_that_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``native`` it may work for long."""
    if os.geteuid() != 0:
        pytest.skip("not root")
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nchrt -p $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(pyspy, "binary", lambda: str(program))
    told: list[bytes] = []

    def screen() -> None:
        assert raise_priority(WATCHER) == f"SCHED_RR {WATCHER}"
        told.append(pyspy.run(os.getpid(), [], time.monotonic() + 30))
        assert os.sched_getscheduler(0) == os.SCHED_RR

    thread = threading.Thread(target=screen)
    thread.start()
    thread.join()
    assert b"SCHED_OTHER" in told[0]
