"""A training script with nothing wrong: `python plain_train.py --workers 2 --start spawn`. Prints a line when it trains steadily."""

from __future__ import annotations

import argparse

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader


def main() -> None:
    """Train until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start", default="fork", choices=("fork", "spawn", "forkserver"))
    parser.add_argument("--cpu-ms", type=float, default=1.0, help="of a sample; eight make a batch")
    parser.add_argument("--gpu-ms", type=float, default=50.0, help="of a step")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", type=int, default=0, help="its GPU")
    options = parser.parse_args()
    trainer = Trainer(options.seconds, options.device)
    trainer.fit(loader(Images(options.cpu_ms), options.workers, options.start), trainer.compute(options.gpu_ms))


if __name__ == "__main__":
    main()
