"""Groups of stacks as lines of text with a kind each: the terminal prints them, the screen styles them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

from gputop.stacks.group import Group
from gputop.stacks.group import Member

_MEMBERS_SHOWN = 12
_KERNEL_SHOWN = 6


class TextLine(NamedTuple):
    """One line. ``kind``: title, members, wait, own (a frame of the user's code), frame, source, kernel, error, note, blank."""

    kind: str
    text: str


def text_lines(groups: Iterable[Group], depth: int = 12) -> list[TextLine]:
    """All groups, at most ``depth`` frames of each; helper threads take one line together with their title."""
    lines: list[TextLine] = []
    for one in groups:
        lines += _lines(one, depth if one.rank < 4 else 0)
        lines.append(TextLine("blank", ""))
    return lines[:-1]


def _lines(one: Group, depth: int) -> list[TextLine]:
    lines = [TextLine("title", one.title)]
    if depth == 0:
        return lines
    if len(one.members) > 1 or one.members[0].label != f"process {one.members[0].pid}":
        lines.append(TextLine("members", "  " + _members(one.members)))
    lines += [TextLine("wait", f"  {wait}" + (f"  ×{count}" if len(one.members) > 1 else "")) for wait, count in one.waits]
    lines += _frames(one, depth)
    if one.kernel:
        lines.append(TextLine("kernel", "    kernel: " + _chain(one.kernel)))
    if one.error and one.error not in one.title:
        lines.append(TextLine("error", f"  {one.error}"))
    return lines + [TextLine("note", f"  {note}") for note in one.notes]


def _members(members: Sequence[Member]) -> str:
    shown = ", ".join(f"{member.label} ({member.tid})" for member in members[:_MEMBERS_SHOWN])
    more = len(members) - _MEMBERS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _frames(one: Group, depth: int) -> list[TextLine]:
    """The innermost ``depth`` frames and all of the user's own, with what lies between left out by number."""
    lines: list[TextLine] = []
    left_out = 0
    for i, frame in enumerate(one.frames):
        if i >= depth and frame.library:
            left_out += 1
            continue
        lines += [*_gap(left_out), TextLine("frame" if frame.library else "own", f"    {frame.name}  {frame.place}")]
        lines += [TextLine("source", f"        {frame.source}")] if frame.source else []
        left_out = 0
    return lines + _gap(left_out)


def _gap(left_out: int) -> list[TextLine]:
    return [TextLine("frame", f"    … {left_out} more")] if left_out else []


def _chain(names: Sequence[str]) -> str:
    more = " ← …" if len(names) > _KERNEL_SHOWN else ""
    return " ← ".join(names[:_KERNEL_SHOWN]) + more
