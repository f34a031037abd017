"""The goodbye of live, record and demo on a terminal: what was lost, by what and whom, its cost, what to do. Nothing goes into a pipe."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputop.commands.options import price
from gputop.system import crash
from gputop.system.colour import width_of
from gputop.system.console import show_aside
from gputop.system.install import FROM_HERE, OWN_NODE

if TYPE_CHECKING:
    from gputop.stream.following import Following

Steps = Sequence[tuple[str, str]]  # (command, what it does)
RECORDS = ("gputop record -o run.gputop -- python train.py", "keeps a run with its evidence")
AT_HOME: Steps = ((OWN_NODE, "the same on your own GPU server"), (FROM_HERE, "the same from here, over ssh"), RECORDS)
PROVES = ("gputop prove", "tries the worst cause: off and on in turn, all is put back")


def add_goodbye(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the goodbye."""
    parser.add_argument("--quiet", action="store_true", help="no goodbye: what was lost, its causes, what next")
    parser.add_argument("--price", type=price, metavar="P", help="of a GPU hour, for the goodbye: 3.5/h or 3.5EUR/h")


def say_goodbye(args: argparse.Namespace, following: Following, began_s: float, onward: Steps) -> None:
    """Print the goodbye of a stream followed since ``began_s`` (monotonic), if anything was judged; ``onward``: what is next."""
    if args.quiet or crash.is_ending() or not sys.stderr.isatty() or following.header is None or not following.engine.fed_ns:
        return
    from gputop.findings.text import LEAST_WIDTH, MOST_WIDTH, WIDTH, goodbye_lines

    width = width_of(sys.stderr, LEAST_WIDTH, MOST_WIDTH, WIDTH)
    found = following.engine.explain()
    show_aside(goodbye_lines(found, following.header, time.monotonic() - began_s, args.price, onward, width))
