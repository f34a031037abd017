"""This machine: the gputop that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.system.program import argv_of

if TYPE_CHECKING:
    from gputop.fleet.reach import Target

LINES = False


def argv(target: Target, words: tuple[str, ...]) -> list[str]:  # noqa: ARG001 - as every way
    """The same interpreter and the same files."""
    return argv_of("gputop", *words)
