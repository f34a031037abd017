"""Run a command as it is, so that its torch processes can be asked for a trace while they run (`gputop trace`).

The command's exit code is passed on, and the folder for the sockets is removed at its end.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess

from gputop.commands.unattended import command_of
from gputop.system.console import notify
from gputop.system.errors import UserError, not_run

EXAMPLES = """examples:
  gputop run -- torchrun --nproc-per-node 8 train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what is run")


def run(args: argparse.Namespace) -> int:
    """Run it. Returns its exit code, 128 + number after a signal."""
    from gputop.commands.options import leave_root
    from gputop.stream.command import PASSED_ON, pass_on
    from gputop.system.imports import STANDARD
    from gputop.traces.environment import added, remove
    from gputop.traces.flight import report_folder

    argv = command_of(args)
    if not argv:
        raise UserError("there is no command: gputop run -- python train.py", code=2)
    leave_root("gputop.traces", *STANDARD)
    more, folder = added(os.environ)
    try:
        try:
            child = subprocess.Popen(argv, env={**os.environ, **more})
        except OSError as error:
            raise UserError(not_run(error), code=127 if isinstance(error, FileNotFoundError) else 126) from None  # as shells do
        for number in PASSED_ON:
            signal.signal(number, lambda got, _frame: pass_on(child, got))
        code = child.wait()
    finally:
        if folder is not None:
            report_folder(folder, notify)
            remove(folder)
    return code if code >= 0 else 128 - code
