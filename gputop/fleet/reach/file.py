"""A recording in place of a machine: it is played from its beginning, as if all of it happened now."""

from __future__ import annotations

from gputop.system.program import argv_of

LINES = False


def argv(host: str, within: str, words: tuple[str, ...]) -> list[str]:  # noqa: ARG001 - as every way
    """``within`` is the file; flags of the collector that follow ``collect`` mean nothing to it."""
    return argv_of("gputop", *words[:1], "--summary", "--from", within)
