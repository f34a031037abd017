"""The files that come with gputop: systemd units, Prometheus' rules, a Grafana dashboard, Kubernetes manifests.

Without NAME they are listed. A unit starts the gputop that prints it, with the path that it has here.
"""

from __future__ import annotations

import argparse
import os

from gputop.system.console import notify, show, write
from gputop.system.output import create, write_all
from gputop.system.shipped import FILES, find, text_of, who_may_change

MODE = 0o644  # of a copy: systemd and Prometheus read it as other users
EXAMPLES = """examples:
  gputop files
  gputop files gputop-record.service | sudo tee /etc/systemd/system/gputop-record.service >/dev/null
  gputop files rules.yml -o gputop.rules.yml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the file, with or without its folder")
    parser.add_argument("-o", "--output", default="-", metavar="PATH", help="a new file, or a folder for it; - is standard output")


def run(args: argparse.Namespace) -> int:
    """List the files, print one, or copy it."""
    if args.name is None:
        show(f"{name:<26}{about}" for name, about in FILES.items())
        return 0
    name = find(args.name)
    text = text_of(name)
    if name.endswith(".service"):
        _warn()
    if args.output == "-":
        write(text)
        return 0
    path = os.path.join(args.output, os.path.basename(name)) if os.path.isdir(args.output) else args.output
    descriptor = create(path)
    try:
        os.fchmod(descriptor, MODE)
        write_all(descriptor, text.encode())
    finally:
        os.close(descriptor)
    notify(f"wrote {path}")
    return 0


def _warn() -> None:
    """Print the owner of the program that root will run."""
    from gputop.system.install import NAME, program

    if user := who_may_change(program()):
        notify(f"root will run {program()}, which {user} may change: sudo pipx install --global {NAME} makes one that only root may")
