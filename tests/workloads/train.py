"""The training script of every workload: `python train.py NAME --seconds S`, one process per rank.

It says on standard output, a JSON object a line, when training is steady (``ready``) and how it went (``done``).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal

from tests.workloads import loop
from tests.workloads import scenario

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Train until the time is over, or the process that started us is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    trainer = loop.Trainer(options.seconds, rank=int(os.environ.get("RANK", "0")))
    scenario.load(options.name).train(trainer)
    trainer.report()


if __name__ == "__main__":
    main()
