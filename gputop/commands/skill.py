"""Print a page for coding agents: when to ask gputop what, how to read an answer, how to apply a fix and prove it."""

from __future__ import annotations

import argparse
import os

from gputop.system.console import write
from gputop.system.program import FOLDER

EXAMPLES = """examples:
  gputop skill > ~/.claude/skills/gputop/SKILL.md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # it takes none


def run(args: argparse.Namespace) -> int:
    """Print the page, which is docs/agents.md, too."""
    del args
    with open(os.path.join(FOLDER, "data", "agents.md"), encoding="utf-8") as file:
        write(file.read())
    return 0
