"""Somebody else on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.probes.swapping import NOBODY
from tests.wait import until

GROUP = 4321  # nobody's own, which nobody else is in


@contextmanager
def nobodys_process() -> Iterator[int]:
    """The pid of one that does nothing."""
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={GROUP}", "sleep", "60"]
    with subprocess.Popen(command) as process:
        try:
            until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
            yield process.pid
        finally:
            process.kill()
