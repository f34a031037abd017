"""A recording in place of a machine: it is played from its beginning, as if it happened now."""

from __future__ import annotations

from gputop.system.program import argv_of

LINES = False


def argv(host: str, within: str, words: tuple[str, ...]) -> list[str]:  # noqa: ARG001 - as every way
    """``within`` is the seconds by which its clock is shifted, and the file: ``86400.000:run/node1.gputop``; without seconds it begins now.
    Flags of the collector that follow ``collect`` mean nothing to it."""
    shift, colon, path = within.partition(":")
    if not colon or not shift.replace(".", "", 1).lstrip("-").isdecimal():
        return argv_of("gputop", *words[:1], "--summary", "--from", within)
    return argv_of("gputop", *words[:1], "--summary", f"--shift={shift}", "--from", path)
