"""The command line: which command is asked for, and the errors in one line.

A command is a module in `gputop.commands` with ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``, and a line in
`COMMANDS`. Only the module of the command that is asked for is imported: start-up time counts.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from types import ModuleType
from typing import NoReturn

from gputop import config
from gputop.errors import UserError

COMMANDS = {
    "live": "watch this machine (what `gputop` alone does)",
    "demo": "see it without a GPU: real trouble, a simulated GPU",
    "explain": "say why, from a live look or a recording",
    "diff": "compare two recordings, before and after a fix",
    "stacks": "the stacks of what is stalled now",
    "record": "record to a file, for a time or around a command",
    "replay": "replay a recording, or a stream from standard input",
    "query": "ask a recording in SQL",
    "export": "a recording as CSV, SQLite, Parquet or a Perfetto trace",
    "mark": "drop a marker into the live stream and the recordings of it",
    "import": "turn an Ingero trace into a recording",
    "doctor": "what works here, what is missing, and the command that mends it",
    "completion": "complete commands and flags in bash, zsh or fish",
    "collect": "write the stream of frames to standard output",
}
CONFIGURED = ("live", "demo", "replay", "record")
"""Those that take their defaults from the user's file; the others are scripts' and do what they are told."""


class Parser(argparse.ArgumentParser):
    """argparse with its errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit 2 with one line on standard error."""
        raise UserError(f"{message} (see {self.prog} --help)", code=2)


def main(argv: list[str] | None = None) -> int:
    """Run the command that was asked for. Exit codes: 0 fine, 1 it could not, 2 wrong usage, 3 `--fail-on` met."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _run(arguments)
    except UserError as error:
        print(f"gputop: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has left; Python would complain once more when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:  # noqa: BLE001 - a bug: one line for the user, the traceback for whoever mends it
        from gputop import crash

        print(f"gputop: {crash.keep(error)}", file=sys.stderr)
        return 1


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments and not arguments[0].startswith("-") else "live"
    if name not in COMMANDS:
        raise UserError(f"there is no command {name!r}: see gputop --help", code=2)
    rest = arguments[1:] if arguments and arguments[0] == name else arguments
    parser, module = make_parser(name)
    if name in CONFIGURED:
        config.apply(parser, strict=name == "live")
    return int(module.run(parser.parse_args(rest)))


def make_parser(name: str) -> tuple[argparse.ArgumentParser, ModuleType]:
    """The parser of a command, and its module."""
    module = importlib.import_module(f"gputop.commands.{name + '_' if name == 'import' else name}")
    parser = Parser(
        prog="gputop" if name == "live" else f"gputop {name}",
        description=_about(name, module.__doc__ or ""),
        epilog=getattr(module, "EXAMPLES", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if name == "live":
        parser.add_argument("-V", "--version", action=Version, nargs=0, help="the version and what it runs on, for bug reports")
    module.add_arguments(parser)
    return parser, module


class Version(argparse.Action):
    """Print the version and the environment."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Exit 0."""
        from gputop.version import report

        print(report())
        parser.exit()


def _about(name: str, docstring: str) -> str:
    if name != "live":
        return docstring.strip()
    listing = "\n".join(f"  {command:<12}{text}" for command, text in COMMANDS.items())
    return f"{docstring.strip()}\n\ncommands (gputop COMMAND --help tells more):\n{listing}"
