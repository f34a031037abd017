"""What people complain of, written as they write it, on a real GPU: `python -m tests.device.complaints OUT [NAME …]`.

Libraries are imported once, each job is forked from there, recorded from its first step on, and explained beside its label.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.device import everyday, shapes
from tests.device.jobs import Clock, Over

_GPUTOP = [sys.executable, "-m", "gputop"]
_SECONDS = float(os.environ.get("GPUTOP_COMPLAINT_S", "9"))
_LIMIT_S = 60.0 + _SECONDS
Job = Callable[[Clock, Path], None]
JOBS: dict[str, tuple[Job, str]] = {**everyday.JOBS, **shapes.JOBS}
"""Job, and what may be said of it: symptom/cause, several where both are true."""


class _Told(Clock):
    """Tells the first step through a pipe."""

    def __init__(self, seconds: float, write_fd: int) -> None:
        super().__init__(seconds)
        self._write_fd = write_fd

    def tick(self) -> None:
        """A step is over."""
        if not self.steps:
            os.write(self._write_fd, b".")
        super().tick()


def _run(name: str, write_fd: int) -> None:
    """In the child: steps until the time is over."""
    os.setsid()
    signal.alarm(int(_LIMIT_S))
    clock = _Told(_SECONDS + 1.5, write_fd)
    with tempfile.TemporaryDirectory(prefix="gputop-complaint-") as folder:
        try:
            JOBS[name][0](clock, Path(folder))
        except Over:
            print(f"{name}: {clock.steps} steps", file=sys.stderr, flush=True)


def _fork(name: str) -> tuple[int, int]:
    """The child's pid, and the pipe that tells its first step or its end."""
    read_fd, write_fd = os.pipe()
    if pid := os.fork():
        os.close(write_fd)
        return pid, read_fd
    code = 1
    try:
        _run(name, write_fd)
        code = 0
    except BaseException as error:  # noqa: BLE001 (the child must never go on as its parent)
        print(f"{name}: {error!r}", file=sys.stderr, flush=True)
    sys.stderr.flush()
    os._exit(code)


def record(name: str, path: Path) -> int:
    """Run the job ``name`` beside a recorder; the child's status."""
    pid, read_fd = _fork(name)
    os.read(read_fd, 1)
    os.close(read_fd)
    recorder = subprocess.Popen([*_GPUTOP, "record", "-o", str(path)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    status = os.waitpid(pid, 0)[1]
    recorder.send_signal(signal.SIGINT)
    recorder.wait()
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return status


def explain(path: Path, out: Path) -> tuple[str, float]:
    """Verdict of the last seconds and the share of GPU time lost; the words beside the recording."""
    command = [*_GPUTOP, "explain", str(path), "--last", f"{_SECONDS - 1:g}s"]
    whole, words = (subprocess.run([*command, *flags], capture_output=True, text=True, check=False) for flags in (["--json"], []))
    out.write_text(words.stdout + words.stderr)
    found = json.loads(whole.stdout or "{}")
    verdict = found.get("verdict") or {}
    ledger = found.get("ledger") or {}
    return f"{verdict.get('symptom')}/{verdict.get('cause')}", 100 * (ledger.get("gpu_lost_s") or 0) / (ledger.get("gpu_total_s") or 1)


def main(out: Path, names: list[str]) -> None:
    """Each job, then a line for each."""
    everyday.warm_up()
    kept = {}
    for name in names or list(JOBS):
        began = time.monotonic()
        status = record(name, out / f"{name}.gputop")
        kept[name] = status, time.monotonic() - began
    for name, (status, took_s) in kept.items():
        said, lost_pct = explain(out / f"{name}.gputop", out / f"{name}.txt")
        wanted = JOBS[name][1]
        right = "right" if said in wanted.split(" or ") else "WRONG"
        print(f"{right} {name}: {said} ({lost_pct:.0f} % lost), wanted {wanted}; status {status}, {took_s:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
