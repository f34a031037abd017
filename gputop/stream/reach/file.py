"""A recording in place of a machine: it is played as if all of it happened now, or by a clock that may stand and run faster."""

from __future__ import annotations

import re

from gputop.system.program import argv_of

LINES = False
_TIMES = re.compile(r"-?\d+(\.\d+)?|\d+(\.\d+)?(,\d+(\.\d+)?){2}", re.ASCII)


def is_clocked(within: str) -> bool:
    """True if the recording is played by a clock and keeps its own times."""
    times, colon, _ = within.partition(":")
    return bool(colon and "," in times and _TIMES.fullmatch(times))


def argv(host: str, within: str, words: tuple[str, ...]) -> list[str]:  # noqa: ARG001 - as every way
    """``within`` is the seconds by which its clock is shifted, or a `gputop.stream.playback.PlayedClock`, and the file:
    ``86400.000:run/node1.gputop``; without them it begins now. Flags of the collector that follow ``collect`` mean nothing to it."""
    times, colon, path = within.partition(":")
    if not colon or not _TIMES.fullmatch(times):
        return argv_of("gputop", *words[:1], "--summary", "--from", within)
    return argv_of("gputop", *words[:1], "--summary", f"--{'clock' if is_clocked(within) else 'shift'}={times}", "--from", path)
