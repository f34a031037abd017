"""Print the environment in which torch jobs can be asked for traces (`gputop trace`), as lines for a shell.

For sbatch scripts, pods and .bashrc; the folder that it names is made, for this user alone.
"""

from __future__ import annotations

import argparse
import shlex

from gputop.system.console import show

EXAMPLES = """examples:
  eval "$(gputop env)"                          in a shell, or before srun in a batch script
  gputop env --folder /run/gputop --plain       for a pod: the folder is an emptyDir that both containers mount
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", metavar="DIR", help="the folder of the sockets, mode 0700, at most 59 characters (a new one)")
    parser.add_argument("--plain", action="store_true", help="NAME=VALUE lines without `export`, for env files")


def run(args: argparse.Namespace) -> int:
    """Print the lines."""
    from gputop.commands.options import acting_as_user
    from gputop.traces.environment import make_folder, variables

    with acting_as_user("gputop.traces"):
        found = variables(make_folder(args.folder))
    show([f"{name}={value}" if args.plain else f"export {name}={shlex.quote(value)}" for name, value in found.items()])
    return 0
