"""A scenario on stage, for as long as a ``with`` block lasts: what `gputop demo`, tests and the sample recording start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from gputop.demo import disk, quota
from gputop.demo.scenarios import SCENARIOS
from gputop.sources.simulated import VARIABLE, layout
from gputop.system.errors import starting
from gputop.system.program import argv_of


@contextmanager
def staged(name: str, seconds: float) -> Iterator[dict[str, str]]:
    """Start scenario ``name`` for ``seconds``; gives the environment in which a collector sees its GPU. Raises UserError."""
    scenario = SCENARIOS[name]
    if scenario.quota:
        quota.parent()
    fds = [layout.create(scenario.ranks), disk.make_file() if scenario.file else -1]
    try:
        with starting():
            stage = subprocess.Popen(
                argv_of("gputop.demo.stage", name, *map(str, fds), str(seconds)),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                pass_fds=[fd for fd in fds if fd >= 0],
            )  # fmt: skip
        try:
            yield {**os.environ, VARIABLE: f"/proc/{os.getpid()}/fd/{fds[0]}"}
        finally:
            _end(stage)
    finally:
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _end(stage: subprocess.Popen[bytes]) -> None:
    """Let the stage clear itself; only one that hangs is killed, which its children do not survive either."""
    assert stage.stdin is not None
    stage.stdin.close()
    try:
        stage.wait(10.0)
    except subprocess.TimeoutExpired:
        stage.kill()
        stage.wait()
