"""Groups of stacks as lines of text with a kind each: the terminal prints them, the screen styles them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import NamedTuple

from gputop.stacks.capture import StackSet
from gputop.stacks.frames import Line
from gputop.stacks.group import Group
from gputop.stacks.group import Member
from gputop.stacks.sampling import LineShare
from gputop.stacks.source_line import read_lines
from gputop.text import clean

if TYPE_CHECKING:
    from gputop.stacks.offcpu import OffCpu
    from gputop.stacks.offcpu import OffCpuStack

_MEMBERS_SHOWN = 12
_KERNEL_SHOWN = 6
_WAITS_SHOWN = 4


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


def summary(taken: StackSet) -> str:
    """How it was taken: ``37 stacks of 9 processes in 57 ms, none of them paused``."""
    processes = len({stack.pid for stack in taken.stacks})
    if not taken.paused:
        how = "none of them paused"
    else:
        how = f"{len(taken.paused)} paused for about {'20 ms each, for native frames' if taken.native else '1 ms each'}"
    return f"{_count(len(taken.stacks), 'stack')} of {_count(processes, 'process')} in {taken.took_ns / 1e6:.0f} ms, {how}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def share_lines(pid: int, shares: Sequence[LineShare], most: int = 15) -> list[TextLine]:
    """``62 %  train.py:138  DataLoader.__next__`` with the line's source, most first."""
    shown = shares[:most]
    wanted = {(pid, Line(share.function, share.file, share.line)) for share in shown}
    sources = read_lines(wanted)
    lines: list[TextLine] = []
    for share in shown:
        source = clean(sources.get((pid, Line(share.function, share.file, share.line)), ""))
        doing = clean(share.call or share.function)
        lines.append(TextLine("own", f"{100 * share.share:5.1f} %  {clean(share.place):<24} {doing:<36} {source}".rstrip()))
    rest = sum(share.share for share in shares[most:])
    return [*lines, TextLine("frame", f"{100 * rest:5.1f} %  {len(shares) - most} more lines")] if rest else lines


def offcpu_lines(found: OffCpu, names: Mapping[int, str], most: int = 8) -> list[TextLine]:
    """Where each process's main thread was while it was not on a CPU, longest first; its other threads are left out."""
    lines: list[TextLine] = []
    for pid, name in names.items():
        mine = [one for one in found.stacks if one.tid == pid]
        away = sum(one.ns for one in mine) / 1e9 / found.seconds
        share = f"{100 * min(1.0, away):.0f} % of {found.seconds:.1f} s"
        lines.append(TextLine("title", clean(f"{name} ({pid}): main thread off the CPU {share}")))
        lines += [TextLine("wait" if one.why == "preempted" else "kernel", _departure(one, found.seconds)) for one in mine[:most]]
        lines.append(TextLine("blank", ""))
    if found.lost:
        lines.append(TextLine("error", f"{found.lost} waits found no room in the probe's maps and are not in these sums"))
    return lines


def _departure(one: OffCpuStack, seconds: float) -> str:
    what = ["ready to run, had no CPU"] if one.why == "preempted" else []
    what += [_chain(one.frames)] if one.frames else []
    times = f"{one.times:>6} times" if one.times else "  lasts still"
    return clean(f"{100 * one.ns / 1e9 / seconds:5.1f} %  {one.why:<16}{times:<14}{': '.join(what)}")


def _lines(one: Group, depth: int) -> list[TextLine]:
    lines = [TextLine("title", one.title)]
    if depth == 0:
        return lines
    if len(one.members) > 1 or one.members[0].label != f"process {one.members[0].pid}":
        lines.append(TextLine("members", "  " + _members(one.members)))
    lines += _waits(one)
    lines += _frames(one, depth)
    if one.kernel:
        lines.append(TextLine("kernel", "    kernel: " + _chain(one.kernel)))
    if one.error and one.error not in one.title:
        lines.append(TextLine("error", f"  {one.error}"))
    return lines + [TextLine("note", f"  {note}") for note in one.notes]


def _waits(one: Group) -> list[TextLine]:
    shown = [TextLine("wait", f"  {wait}" + (f"  ×{count}" if len(one.members) > 1 else "")) for wait, count in one.waits[:_WAITS_SHOWN]]
    more = len(one.waits) - _WAITS_SHOWN
    return [*shown, TextLine("wait", f"  and {more} more waits")] if more > 0 else shown


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
