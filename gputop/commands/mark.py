"""Set a marker in every gputop that you run on this machine, from a shell or a training script.

It reaches collectors of the same user; with sudo also collectors of the user behind sudo.
"""

from __future__ import annotations

import argparse
import os

from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.text import clean, from_shell

EXAMPLES = """examples:
  gputop mark "epoch 3"
  gputop mark "$(date +%T) checkpoint begins"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", type=from_shell, nargs="+", metavar="TEXT", help="the marker")


def run(args: argparse.Namespace) -> int:
    """Send the marker to every collector. UserError if none took it."""
    from gputop.sources.marks import MAX_TEXT, places
    from gputop.stream.marking import PATIENCE_S, send_mark

    text = " ".join(args.text).strip()
    if not text:
        raise UserError("the marker is empty", code=2)
    took, busy = send_mark(text)
    if not took and not busy:
        none, as_root = clean(places(os.geteuid())[0]), ", or mark as root where it runs in a container" if os.geteuid() else ""
        raise UserError(
            f"no gputop took the marker: none of yours runs here (none in {none}, none that /proc shows): "
            f"start `gputop` or `gputop record` first{as_root}"
        )
    if busy:
        which = ", ".join(_called(path) for path in busy)
        said = f"has not taken the marker within {PATIENCE_S:g} s: is it stopped?"
        if not took:
            raise UserError(f"{which} {said}")
        notify(f"{which} {said} {took} others have")
    if len(text) > MAX_TEXT:
        notify(f"the marker was cut to its first {MAX_TEXT} characters")
    return 0


def _called(path: str) -> str:
    """``gputop PID``, by the socket's name."""
    return f"gputop {clean(os.path.basename(path)[len('marks-') : -len('.sock')])}"
