"""Ways to a machine, one file each. A way makes the command that runs gputop there; it talks over its standard input and output.

To add one: a module with ``argv``, and a line in `WAYS`. A way with a true ``LINES`` carries lines of text only (`gputop.fleet.as_text`).
"""

from __future__ import annotations

import subprocess
from importlib import import_module
from typing import Protocol, cast

from msgspec import Struct

from gputop.system.errors import UserError, starting
from gputop.system.text import one_line

WAYS = {name: f"gputop.stream.reach.{name}" for name in ("ssh", "srun", "kubectl", "file", "local")}


class Target(Struct, frozen=True):
    """A machine, and the way to it."""

    host: str  # how its row is called, and what the way calls it
    way: str = "ssh"  # a word of `WAYS`
    within: str = ""  # what else the way must know: a Slurm job, a namespace, a file

    def argv(self, *words: str) -> list[str]:
        """The command that runs ``gputop`` with these words on the machine. UserError if the name cannot be a machine's."""
        return self._way.argv(self.host, self.within, words)

    @property
    def is_lines(self) -> bool:
        """True if the way carries lines of text only."""
        return self._way.LINES

    @property
    def _way(self) -> Way:
        return cast(Way, import_module(WAYS[self.way]))


class Way(Protocol):
    """Contents of a module of this package."""

    LINES: bool

    def argv(self, host: str, within: str, words: tuple[str, ...]) -> list[str]:
        """See `Target.argv`."""


ASKED_S = 20.0  # s for squeue or kubectl to list nodes or pods (a choice)


def asked(argv: list[str]) -> str:
    """Output of a command. UserError with its last words if it fails, or does not answer in time."""
    try:
        with starting():
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ASKED_S)
    except subprocess.TimeoutExpired:
        raise UserError(f"{argv[0]} does not answer within {ASKED_S:.0f} s") from None
    if done.returncode:
        raise UserError(f"{argv[0]}: {one_line(done.stderr)[-300:] or f'exit code {done.returncode}'}")
    return done.stdout
