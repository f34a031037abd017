"""Ways to a machine, one file each. A way makes the command that runs gputop there; it talks over its standard input and output.

To add one: a module with ``argv``, and a line in `WAYS`. A way whose ``LINES`` is true carries lines of text only (`gputop.fleet.lines`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from msgspec import Struct

WAYS = {name: f"gputop.fleet.reach.{name}" for name in ("ssh", "local")}


class Target(Struct, frozen=True):
    """A machine, and the way to it."""

    host: str  # how its row is called, and what the way calls it
    way: str = "ssh"  # a word of `WAYS`
    within: str = ""  # what else the way must know: a Slurm job, a namespace, a file

    def argv(self, *words: str) -> list[str]:
        """The command that runs ``gputop`` with these words there. UserError for what is no name of a machine."""
        return self._way.argv(self, words)

    @property
    def is_lines(self) -> bool:
        """Whether the way carries lines of text only."""
        return self._way.LINES

    @property
    def _way(self) -> Way:
        return cast(Way, import_module(WAYS[self.way]))


class Way(Protocol):
    """What a module of this package has."""

    LINES: bool

    def argv(self, target: Target, words: tuple[str, ...]) -> list[str]:
        """See `Target.argv`."""
