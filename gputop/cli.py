"""The command line: finds the command, runs it, and prints errors in one line.

A command is a module in `gputop.commands` with ``add_arguments(parser)`` and ``run(args) -> int``, and a line in `COMMANDS`. Only the
module of the command that runs is imported, for start-up time. Where one command is done in several modules, ``way(args)`` names the one
that runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NoReturn

from gputop.system import config, priority
from gputop.system.console import write
from gputop.system.errors import UserError
from gputop.system.outcome import run_program
from gputop.system.text import did_you_mean

COMMANDS = {
    "live": "watch this machine (what `gputop` alone does)",
    "demo": "see it without a GPU: real trouble, a simulated GPU",
    "explain": "find the cause, live or in a recording",
    "diff": "compare two recordings, before and after a fix",
    "prove": "try a cause: switch it off and on, compare the pace",
    "stacks": "the stacks of stalled processes",
    "trace": "take a torch.profiler trace of a running job, and read it",
    "run": "start a job that can be asked for traces",
    "env": "the same for scripts and pods: lines for a shell",
    "record": "record to a file, for a time or around a command",
    "watch": "report incidents without a screen; exit 3 for CI",
    "replay": "replay a recording, or a stream from standard input",
    "query": "ask a recording in SQL",
    "export": "a recording as CSV, SQLite, Parquet, a trace or a page",
    "report": "GPU hours and money lost, by user, job and cause",
    "loader": "how many workers a DataLoader needs, measured",
    "exporter": "metrics for Prometheus, node_exporter, OpenTelemetry",
    "mcp": "agents ask why training is slow (MCP server)",
    "skill": "a page that tells coding agents how to use gputop",
    "pick": "the GPUs without work, for CUDA_VISIBLE_DEVICES",
    "mark": "set a marker in the live view and in recordings",
    "doctor": "what works here, what is missing, and the command that fixes it",
    "config": "the settings: where they stand, what holds, what is wrong",
    "files": "systemd units, a dashboard, rules, manifests: list, print, copy",
    "schema": "the JSON Schema of what gputop prints as JSON",
    "completion": "complete commands and flags in bash, zsh or fish",
    "collect": "write the stream of frames to standard output",
}
SELDOM = (  # only named there
    "stacks", "trace", "run", "env", "loader", "watch", "exporter", "mcp", "skill", "pick", "mark", "config", "files", "schema",
    "completion", "collect",
)  # fmt: skip
WATCHING = ("live", "record", "watch", "collect", "prove")  # these watch this machine; they raise their priority before any import
CONFIGURED = ("live", "demo", "replay", "record", "watch")  # these take defaults from the user's configuration; scripts use the others

_WRONG = re.compile(r"invalid choice: '([^']*)'|unrecognized arguments: (-[^\s=]*)")  # argparse's words about one that it does not know


class Parser(argparse.ArgumentParser):
    """argparse with errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit 2 with one line on standard error, which names what is spelled alike."""
        wrong = _WRONG.search(message)
        known = [str(word) for action in self._actions for word in (*action.option_strings, *(action.choices or ()))]
        close = did_you_mean(wrong[1] or wrong[2], known) if wrong else ""
        raise UserError(f"{message}{close} (see {self.prog} --help)", code=2)

    def print_help(self, file: object = None) -> None:  # noqa: ARG002 - argparse's own
        """Print to standard output."""
        write(self.format_help())


class Help(argparse.RawDescriptionHelpFormatter):
    """Help that fits a screen: usage in a line, arguments and options in one list, and no line for ``--help`` itself."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=22, width=_columns() - 2)

    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], groups: Any, prefix: str | None = None) -> None:
        """``usage: gputop record [OPTIONS] [-- COMMAND]``."""
        words = [self._argument(action) for action in actions if not action.option_strings]
        super().add_usage(usage or " ".join(["%(prog)s", "[OPTIONS]", *words]), [], groups, prefix)

    def start_section(self, heading: str | None) -> None:  # noqa: ARG002 - argparse's own
        """Leave headings out."""
        super().start_section(argparse.SUPPRESS)

    def add_argument(self, action: argparse.Action) -> None:
        """List every argument but ``--help``."""
        if not isinstance(action, argparse._HelpAction):
            super().add_argument(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """``-o, --output FILE``."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar or action.dest.upper()}"

    def _argument(self, action: argparse.Action) -> str:
        name = str(action.metavar or action.dest)
        return f"[{name}]" if action.nargs in ("?", "*", argparse.REMAINDER) else name

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002 - argparse's own
        """Wrap paragraphs to the terminal's width, except those in columns."""
        blocks = (block if "  " in block else textwrap.fill(" ".join(block.split()), width) for block in text.strip("\n").split("\n\n"))
        return "\n\n".join(blocks)


def _columns() -> int:
    """The terminal's width, as by `shutil.get_terminal_size`, but without that module, which imports compressors."""
    try:
        return max(0, int(os.environ.get("COLUMNS", 0))) or os.get_terminal_size(1).columns or 80
    except (ValueError, OSError):
        return 80


def main(argv: list[str] | None = None) -> int:
    """Run a command. Exit codes: 0 success, 1 failure, 2 wrong usage, 3 `--fail-on` met."""
    arguments = sys.argv[1:] if argv is None else argv
    is_own = argv is None  # the process runs nothing else; its priority may change

    def work() -> int:
        if is_own and _name(arguments) in WATCHING:
            priority.SCREEN_PRIORITY.request()
        return _run(arguments)

    return run_program(work, is_own)


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:  # gputop help COMMAND
        arguments = [*arguments[1:2], "--help"]
    if arguments[:1] in (["-h"], ["--help"]):
        write(f"{overview()}\n")
        return 0
    name = _name(arguments)
    if name not in COMMANDS:
        raise UserError(f"there is no command {name!r}{did_you_mean(name, ('help', *COMMANDS))}: see gputop --help", code=2)
    rest = arguments[1:] if arguments and arguments[0] == name else arguments
    parser, module = make_parser(name)
    if name in CONFIGURED:
        config.apply(parser, strict=name == "live")
    args = _parsed(parser, rest)
    if hasattr(module, "way"):  # a command of several modules: the arguments say which one runs
        module = importlib.import_module(f"gputop.commands.{module.way(args)}")
    return int(module.run(args))


def _parsed(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Parse; flags may stand between arguments, unless there is a ``--`` or a command with flags of its own.

    Where a command has ``script_args``, they are what follows the ``--``.
    """
    if "--" in arguments and parser.get_default("script_args") is not None:
        at = arguments.index("--")
        parsed = parser.parse_intermixed_args(arguments[:at])
        parsed.script_args = arguments[at + 1 :]
        return parsed
    if "--" in arguments or any(action.nargs == argparse.REMAINDER for action in parser._actions):
        return parser.parse_args(arguments)
    return parser.parse_intermixed_args(arguments)


def _name(arguments: list[str]) -> str:
    return arguments[0] if arguments and not arguments[0].startswith("-") else "live"


def make_parser(name: str) -> tuple[argparse.ArgumentParser, ModuleType]:
    """The parser of a command and its module."""
    module = importlib.import_module(f"gputop.commands.{name}")
    parser = Parser(
        prog="gputop" if name == "live" else f"gputop {name}",
        description=(module.__doc__ or "").strip(),
        epilog=getattr(module, "EXAMPLES", None),
        formatter_class=Help,
        allow_abbrev=False,
    )
    if name == "live":
        parser.add_argument("-V", "--version", action=VersionAction, nargs=0, help="the version and what it runs on, for bug reports")
    module.add_arguments(parser)
    # Because of the option -1, argparse would take negative numbers for options.
    parser._has_negative_number_optionals.clear()
    return parser, module


class VersionAction(argparse.Action):
    """Print the version and the environment."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Exit 0."""
        from gputop.system.program import report

        write(f"{report()}\n")
        parser.exit()


def overview() -> str:
    """The text of `gputop --help`: commands, flags of the live view, examples."""
    parser, module = make_parser("live")
    listed = "\n".join(f"  {command:<10}{text}" for command, text in COMMANDS.items() if command not in SELDOM)
    flags = [action.option_strings[-1] for action in parser._actions[1:] if action.option_strings]
    more = textwrap.fill(f"live's flags (gputop live --help): {' '.join(flags)}", 79, subsequent_indent="  ", break_on_hyphens=False)
    seldom = textwrap.fill(f"  also {', '.join(SELDOM)}", 79, subsequent_indent="  ")
    usage = "usage: gputop [COMMAND] [OPTIONS], gputop help COMMAND"
    return f"{usage}\n{module.__doc__}\n\n{listed}\n{seldom}\n{more}\n\n{module.EXAMPLES.rstrip()}"
