"""This machine: the gputop that runs."""

from __future__ import annotations

from gputop.system.program import argv_of

LINES = False


def argv(host: str, within: str, words: tuple[str, ...]) -> list[str]:  # noqa: ARG001 - as every way
    """Command that runs the same interpreter with the same files, on this machine."""
    return argv_of("gputop", *words)
