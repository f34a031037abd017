"""Turn an Ingero trace (an SQLite database) into a recording of its CUDA calls, host load and findings."""

from __future__ import annotations

import argparse
from pathlib import Path

from gputop.commands.options import WRITER, acting_as_user
from gputop.system.errors import UserError

EXAMPLES = """examples:
  gputop import ingero.db -o ingero.gputop
  gputop query ingero.gputop "SELECT call, sum(calls), max(max_ms) FROM sync GROUP BY call"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an Ingero database")
    parser.add_argument("-o", "--output", metavar="OUT", help="a new recording (FILE with the ending .gputop)")


def run(args: argparse.Namespace) -> int:
    """Write the recording whole, or not at all."""
    if args.output == "-":
        raise UserError("a recording is a file: give its name with -o", code=2)
    from contextlib import closing

    from gputop.model.frame import Frame, Header
    from gputop.recording.ingero import LeftOut, read
    from gputop.recording.writer import Writer
    from gputop.system.console import notify
    from gputop.system.output import ended_like_ctrl_c, whole_or_gone
    from gputop.system.text import clean, counted

    items = read(args.file)
    header = next(items)
    assert isinstance(header, Header)
    path = str(Path(args.file).with_suffix(".gputop")) if args.output is None else args.output
    count = 0
    with ended_like_ctrl_c(), acting_as_user(*WRITER), whole_or_gone(path) as part:
        with closing(Writer(part, header)) as writer:
            for item in items:
                if isinstance(item, Frame):
                    writer.add(item)
                    count += 1
                elif isinstance(item, LeftOut):
                    notify(str(item))
            writer.flush()  # raises where there is no room; closing does not
        if writer.problem:
            raise UserError(f"cannot write the end of {clean(path)}: is the disk full?")
    notify(f"{counted(count, 'frame')} in {path}")
    return 0
