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
from gputop.stacks.source_line import read_lines
from gputop.text import clean

if TYPE_CHECKING:
    from gputop.stacks.callers import CudaLine
    from gputop.stacks.main_thread import MainThread
    from gputop.stacks.offcpu import OffCpu
    from gputop.stacks.offcpu import OffCpuStack
    from gputop.stacks.sampling import LineShare

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


def main_thread_lines(main: MainThread, name: str, most: int = 15) -> list[TextLine]:
    """Its lines, most first, ``62.0 %  train.py:138  DataLoader.__next__``, then which of them were inside CUDA calls."""
    shares = main.shares
    lines = [TextLine("title", clean(f"{name} ({main.pid}), main thread"))]
    places = [Line(share.function, share.file, share.line) for share in shares[:most]]
    places += [Line(one.function, one.file, one.line) for one in main.cuda[:most]]
    sources = {place: clean(text) for (_, place), text in read_lines({(main.pid, place) for place in places}).items()}
    lines += [TextLine("own", _share(share, sources)) for share in shares[:most]]
    rest = sum(share.share for share in shares[most:])
    lines += [TextLine("frame", f"{100 * rest:5.1f} %  {len(shares) - most} more lines")] if rest else []
    return lines + _cuda_lines(main, sources, most)


def _share(share: LineShare, sources: Mapping[Line, str]) -> str:
    source = sources.get(Line(share.function, share.file, share.line), "")
    return f"{100 * share.share:5.1f} %  {clean(share.place):<24} {clean(share.call or share.function):<36} {source}".rstrip()


def _cuda_lines(main: MainThread, sources: Mapping[Line, str], most: int) -> list[TextLine]:
    """``41.2 %  train.py:57  loss.item() → cuStreamSynchronize  1,920 calls, p99 3.1 ms``, or why it is not known."""
    if main.no_cuda:
        return [TextLine("note", f"  CUDA calls were not watched: {clean(main.no_cuda)}")]
    if not main.cuda:
        return [TextLine("note", "  it made no CUDA synchronize and no memcpy in this time")]
    inside = sum(one.share for one in main.cuda)
    lines = [TextLine("title", f"inside CUDA calls {100 * min(1.0, inside):.0f} % of its time, every call counted:")]
    lines += [TextLine("own", _cuda_line(one, sources)) for one in main.cuda[:most]]
    more = main.cuda[most:]
    return [*lines, TextLine("frame", f"{100 * sum(one.share for one in more):5.1f} %  {len(more)} more lines")] if more else lines


def _cuda_line(one: CudaLine, sources: Mapping[Line, str]) -> str:
    doing = sources.get(Line(one.function, one.file, one.line), "") or clean(one.via or one.function)
    calls = f"{one.calls:,} call{'s' if one.calls != 1 else ''}" if one.calls else "lasts still"
    p99 = f", p99 {_duration(one.p99_ns)}" if one.p99_ns is not None else ""
    return f"{100 * one.share:5.1f} %  {clean(one.place):<24} {one.call}  {calls}{p99}, longest {_duration(one.max_ns)}  ← {doing}"


def _duration(ns: float) -> str:
    """``840 ns``, ``31 µs``, ``3.1 ms``, ``410 ms``, ``2.4 s``."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= size:
            return f"{ns / size:.{1 if ns < 10 * size else 0}f} {unit}"
    return f"{ns:.0f} ns"


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
