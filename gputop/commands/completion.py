"""Print a shell's completion of gputop's commands and flags, for its start-up file."""

from __future__ import annotations

import argparse
import os

from gputop.system.console import write
from gputop.system.errors import UserError
from gputop.system.program import FOLDER

EXAMPLES = """examples:
  eval "$(gputop completion bash)"        in ~/.bashrc
  eval "$(gputop completion zsh)"         in ~/.zshrc, after compinit
  gputop completion fish | source         in ~/.config/fish/config.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], metavar="bash|zsh|fish", help="the shell")


def run(args: argparse.Namespace) -> int:
    """Print the file that setup.py made."""
    path = os.path.join(FOLDER, "data", f"completion.{args.shell}")
    try:
        with open(path, encoding="utf-8") as file:
            write(file.read())
    except FileNotFoundError:
        raise UserError("completions are made when gputop is installed: pip install -e . makes them in this tree") from None
    return 0
