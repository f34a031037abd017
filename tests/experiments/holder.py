"""A gputop that holds an experiment: ``python -m tests.experiments.holder ON_S OFF_S``, with the plan on standard input.

It switches it on and off until standard input ends, or for ever; each time it says so in a line.
"""

from __future__ import annotations

import sys
import time

import msgspec

from gputop.prove.change import Plan
from gputop.prove.guardian import Guard
from tests.experiments.place import from_environment


def main() -> None:
    """Hold the experiment."""
    from_environment()
    on_s, off_s = map(float, sys.argv[1:])
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    with Guard(plan, agreed=True) as guard:
        while True:
            guard.on()
            print("on", flush=True)
            time.sleep(on_s)
            guard.off()
            print("off", flush=True)
            time.sleep(off_s)


if __name__ == "__main__":
    main()
