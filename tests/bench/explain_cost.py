"""How long `gputop explain` takes for an hour of 8 GPUs and 80 processes: by what its recorder left, and judged anew.

The session is made (`tests.recording.made`); the whole command is timed, as who waits for it would.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gputop.recording.writer import NO_LIMIT, Rotation
from gputop.stream.kept import FindingsRecorder
from gputop.stream.stalled import Unwatched
from tests.bench.figures import spread
from tests.recording.made import HEADER, Session

HOUR_TICKS = 36_000
_EXPLAIN = [str(Path(sys.executable).parent / "gputop"), "explain", "--json"]


def report(ticks: int = HOUR_TICKS, runs: int = 3) -> Iterator[str]:
    """A paragraph of Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hour.gputop"
        record(path, ticks)
        kept, anew = ([waited(path, flags) for _ in range(runs)] for flags in ([], ["--from", "1"]))
        yield (
            f"## Explaining {ticks / 600:.0f} minutes of 8 GPUs and 80 processes ({path.stat().st_size / 1e6:.0f} MB)\n\n"
            f"By what its recorder left: {spread(kept, 2)} s. All but its first second, judged anew: {spread(anew, 1)} s."
        )


def record(path: Path, ticks: int) -> None:
    """As `gputop record` does."""
    diagnosis = Unwatched(None)
    diagnosis.following.restate(HEADER)
    files = Rotation(str(path), HEADER, NO_LIMIT, 0, lambda: FindingsRecorder(diagnosis.following.engine).tell)
    for frame in Session(8, 80, threads=8, probes=False).frames(ticks):
        diagnosis.take(frame)
        files.add(frame)
    files.close()


def waited(path: Path, flags: list[str]) -> float:
    """Seconds until it has ended."""
    began = time.monotonic()
    subprocess.run([*_EXPLAIN, str(path), *flags], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began
