"""The training script of every workload: `python train.py NAME --seconds S`, one process per rank.

It prints a line when it trains steadily.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal

from tests.workloads import loop, scenario

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Train until the time is over, or the process that started us is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    loop.change_loaders()
    scenario.load(options.name).train(loop.Trainer(options.seconds, rank=int(os.environ.get("RANK", "0"))))


if __name__ == "__main__":
    main()
