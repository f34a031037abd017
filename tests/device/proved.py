"""`gputop prove` on a real GPU: `python -m tests.device.proved`.

A training is fed by a worker for each CPU; three processes for each CPU take these. The verdict of the trial stands beside the paces by
hand, with these processes at work and stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.device import everyday
from tests.device.jobs import Clock, Over
from tests.device.story import HOG

_CPUS = os.cpu_count() or 1
_SECONDS, _SETTLE_S, _COUNTED_S = 150.0, 5.0, 8.0


class _Told(Clock):
    """A line for each step."""

    def tick(self) -> None:
        """A step is over."""
        super().tick()
        print(self.steps, flush=True)


def train() -> None:
    """The training itself."""
    with tempfile.TemporaryDirectory(prefix="gputop-proved-") as folder:
        try:
            everyday.train_pictures(_Told(_SECONDS), Path(folder), batch_size=32, num_workers=_CPUS, persistent_workers=True)
        except Over:
            return


def _steps_per_min(steps: Path) -> float:
    before = steps.read_text().count("\n")
    time.sleep(_COUNTED_S)
    return (steps.read_text().count("\n") - before) * 60 / _COUNTED_S


def main() -> None:
    """Start both, prove, and count."""
    steps = Path(tempfile.mkdtemp()) / "steps"
    with steps.open("w") as file:
        trainer = subprocess.Popen([sys.executable, "-m", "tests.device.proved", "--train"], stdout=file)
    hogs: list[subprocess.Popen[bytes]] = []
    try:
        while not steps.read_text().count("\n") > 2 * _CPUS:
            time.sleep(0.2)
        hogs += [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(3 * _CPUS)]
        time.sleep(_SETTLE_S)
        print(f"with them: {_steps_per_min(steps):.0f} steps a minute", flush=True)
        subprocess.run([sys.executable, "-m", "gputop", "prove", "--yes"], check=False)
        for hog in hogs:
            hog.send_signal(signal.SIGSTOP)
        time.sleep(_SETTLE_S)
        print(f"without them: {_steps_per_min(steps):.0f} steps a minute", flush=True)
    finally:
        for process in (trainer, *hogs):
            process.kill()
            process.wait()


if __name__ == "__main__":
    train() if "--train" in sys.argv else main()
