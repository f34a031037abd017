"""The demo's training script, one process per rank: ``train.py SCENARIO PARENT GPU_FD SIGNALS_FD FILE_FD``.

It trains until its parent, the stage, ends it.
"""

from __future__ import annotations

import sys

from gputop.demo.scenarios import SCENARIOS
from gputop.demo.work import DemoRank, die_with_parent


def main(name: str, parent: str, *fds: str) -> None:
    die_with_parent(int(parent))
    rank = DemoRank(*map(int, fds))
    SCENARIOS[name].train(rank)


if __name__ == "__main__":
    main(*sys.argv[1:])
