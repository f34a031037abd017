"""Read many changed inputs of all kinds, in children that have little memory and time, and say what went wrong.

    python -m tests.fuzzing [COUNT] [--only KIND] [--from NUMBER] [--workers N]
    python -m tests.fuzzing write KIND NUMBER FILE
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzzing import kinds
from tests.recording import fuzz


def main() -> int:
    """Run; 1 where something went wrong."""
    if sys.argv[1:2] == ["write"]:
        kind = next(kind for kind in kinds.KINDS if kind.name == sys.argv[2])
        Path(sys.argv[4]).write_bytes(kind.make(random.Random(f"{kind.name} {sys.argv[3]}")))
        return 0
    parser = argparse.ArgumentParser(description="changed inputs of all readers of foreign bytes")
    parser.add_argument("count", nargs="?", type=int, default=10_000, help="inputs of all kinds together")
    parser.add_argument("--only", choices=[kinds.RECORDINGS, *(kind.name for kind in kinds.KINDS)], help="one kind")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first number")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    went_wrong, read, began_s = 0, 0, time.monotonic()
    for name, inputs, prepare in _batches(args.count, args.first, args.only):
        at_s = time.monotonic()
        found = fuzz.campaign(inputs, args.workers, prepare=prepare)
        sys.stdout.write("".join(f"{wrong}\n---\n" for wrong in found))
        sys.stdout.write(f"{name:14} {len(inputs):7} inputs, {len(found)} went wrong, {time.monotonic() - at_s:.0f} s\n")
        sys.stdout.flush()
        went_wrong, read = went_wrong + len(found), read + len(inputs)
    sys.stdout.write(f"{read} inputs, {went_wrong} went wrong, {time.monotonic() - began_s:.0f} s\n")
    return int(bool(went_wrong))


def _batches(count: int, first: int, only: str | None) -> Iterator[tuple[str, list[fuzz.Input], Callable[[], object]]]:
    """(kind, its inputs, what is prepared before)."""
    recordings = {None: round(count * kinds.RECORDINGS_SHARE), kinds.RECORDINGS: count}.get(only, 0)
    if recordings:
        yield kinds.RECORDINGS, [fuzz.numbered(number) for number in range(first, first + recordings)], fuzz.prepare
    for kind, share in kinds.counts(count - recordings).items():
        if only in (None, kind.name):
            yield kind.name, kinds.inputs(kind, share if only is None else count, first), kinds.prepare


if __name__ == "__main__":
    sys.exit(main())
