"""A minute of a real training that goes wrong and right again: `python -m tests.device.story OUT`, recorded for tests and pictures.

A vision transformer is fed by two workers, then by as many as there are CPUs; other people's processes take these for a while.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_GPUTOP = [sys.executable, "-m", "gputop"]
PHASES = (("two workers", 2, 13.0), ("a worker for each CPU", 15, 16.0), ("others compute", 15, 13.0), ("alone again", 15, 8.0))
"""What the marker says, workers, seconds."""
HOG = "import os\nwhile True: sum(i * i for i in range(10**6))"


def train(folder: Path) -> None:
    """The training script. Each phase is told by a line and a marker."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision.models import vit_l_16

    from tests.device.jobs import Pictures

    model, pictures = vit_l_16().to("cuda"), Pictures(folder)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    loader, feeders = None, 0
    for name, workers, seconds in PHASES:
        if workers != feeders:
            loader, feeders = iter(DataLoader(pictures, 64, shuffle=True, num_workers=workers, pin_memory=True)), workers
        assert loader is not None
        step = 0
        end = 0.0
        while not end or time.monotonic() < end:
            images, labels = next(loader)
            images, labels = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                loss.item()
            if not end:
                end = time.monotonic() + seconds
                print(name, flush=True)
            step += 1
        print(f"{name}: {step} steps in {seconds:g} s", file=sys.stderr, flush=True)


def main(out: Path) -> None:
    """Record the training, with hogs while it says that others compute."""
    hogs: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="gputop-story-") as folder:
        command = [sys.executable, "-m", "tests.device.story", "--train", folder]
        trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert trainer.stdout is not None
        recorder = None
        for line in trainer.stdout:
            recorder = recorder or subprocess.Popen([*_GPUTOP, "record", "-o", str(out / "story.gputop")], stdin=subprocess.DEVNULL)
            subprocess.run([*_GPUTOP, "mark", line.strip()], check=False)
            for hog in hogs:
                hog.kill()
            hogs = [_hog() for _ in range(3 * (os.cpu_count() or 1))] if line.startswith("others") else []
        trainer.wait()
        if recorder is not None:
            time.sleep(1)
            recorder.send_signal(signal.SIGINT)
            recorder.wait()


def _hog() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", HOG], start_new_session=True)


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
