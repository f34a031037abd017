"""Stacks as text: styled lines for terminal and screen, folded lines for flame graphs, and speedscope documents."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gputop.model.frame import Stack
from gputop.stacks.flame import KERNEL_MARK
from gputop.stacks.frames import Line, Weighted, parse
from gputop.stacks.group import Group, Member
from gputop.stacks.source_line import read_lines
from gputop.system import colour
from gputop.system.errors import UserError
from gputop.system.output import create, whole_or_gone
from gputop.system.text import clean, counted

if TYPE_CHECKING:
    from gputop.stacks.capture import StackSet
    from gputop.stacks.on_demand import OffCpu, OffCpuStack
    from gputop.stacks.sampling import CudaLine, LineShare, MainThread

MEANINGS = {
    "title": "title", "members": "dim", "wait": "warn", "own": "accent", "row": "accent", "frame": "", "source": "good", "kernel": "dim",
    "error": "crit", "note": "dim", "blank": "",
}  # fmt: skip
"""Kind of a line -> meaning of its colour."""
_SENTENCES = ("members", "wait", "kernel", "error", "note")  # kinds that may be broken; frames and rows are read across
_MEMBERS_SHOWN = 12  # threads named per group
_KERNEL_SHOWN = 6  # kernel functions per stack, the innermost
_OVERVIEW = 6  # groups in the overview
_WAITS_SHOWN = 4  # different waits per group
_LEAST_LINE = 0.01  # share of the samples: lines with less are summed, so that the CUDA calls fit on the screen too
_LEAST_SHOWN = 0.0005  # share of the watched time: less would be printed as 0.0 %


class TextLine(NamedTuple):
    """One line. ``kind``: title, members, wait, own (the user's code), row (of a table), frame, source, kernel, error, note, blank."""

    kind: str
    text: str


def plain(lines: Iterable[TextLine]) -> str:
    """The lines as text for a terminal or a file, each ending with a newline."""
    return "".join(f"{clean(line.text)}\n" for line in lines)


def coloured(lines: Iterable[TextLine], width: int) -> Iterator[colour.Line]:
    """The lines with meanings for a terminal of ``width`` columns, wider sentences in several."""
    for line in lines:
        text = clean(line.text)
        if len(text) > width and line.kind in _SENTENCES:
            indent = " " * (len(text) - len(text.lstrip()))
            rows = textwrap.wrap(text.strip(), width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
        else:
            rows = [text]
        yield from ([(row, MEANINGS[line.kind])] for row in rows)


def text_lines(groups: Iterable[Group], depth: int = 12) -> list[TextLine]:
    """An overview with a line per group, then all groups with at most ``depth`` frames each; a group of helper threads is one line."""
    shown = list(groups)
    lines = _overview([one for one in shown if one.members[0].tid == one.members[0].pid])
    for one in shown:
        lines += _lines(one, depth if one.rank < 4 else 0)
        lines.append(TextLine("blank", ""))
    return lines[:-1]


def _overview(groups: Sequence[Group]) -> list[TextLine]:
    """A line per group, if there are several: its members, where they stand, and the wait."""
    if len(groups) < 2:
        return []
    waits = [one.waits[0][0].partition(";")[0] if one.waits else "" for one in groups[:_OVERVIEW]]
    lines = [TextLine("own", f"{one.title}  · {wait}" if wait else one.title) for one, wait in zip(groups, waits, strict=False)]
    more = len(groups) - _OVERVIEW
    return [*lines, *([TextLine("note", f"and {more} more stacks")] if more > 0 else []), TextLine("blank", "")]


def summary(taken: StackSet) -> str:
    """One line about the set: ``37 stacks of 9 processes in 57 ms, none paused; 1 process could not be read``."""
    asked = {stack.pid for stack in taken.stacks}
    found = [stack.pid for stack in taken.stacks if stack.python or stack.kernel]
    unread = len(asked) - len(set(found))
    if not found:
        return f"no stack of {counted(unread, 'process')} could be read"
    if not taken.paused:
        how = "none paused"
    else:
        how = f"{len(taken.paused)} paused for about {'20 ms each, for native frames' if taken.native else '1 ms each'}"
    rest = f"; {counted(unread, 'process')} could not be read" if unread else ""
    return f"{counted(len(found), 'stack')} of {counted(len(set(found)), 'process')} in {taken.took_ns / 1e6:.0f} ms, {how}{rest}"


def main_thread_lines(main: MainThread, name: str, most: int = 15) -> list[TextLine]:
    """A main thread's lines, most first: ``62.0 %  train.py:138  DataLoader.__next__``; then its CUDA calls."""
    shares = main.shares
    shown = [share for share in shares[:most] if share.share >= _LEAST_LINE] or shares[:1]
    places = [Line(share.function, share.file, share.line) for share in shown]
    places += [Line(one.function, one.file, one.line) for one in main.cuda[:most]]
    read = read_lines({(main.pid, place) for place in places})
    sources = [clean(read.get((main.pid, place), "")) for place in places]
    lines = [TextLine("title", clean(f"{name} ({main.pid}), main thread"))]
    lines += _columns([_share(*one) for one in zip(shown, sources, strict=False)])
    lines += _rest([share.share for share in shares[len(shown) :]])
    return lines + _cuda_lines(main, sources[len(shown) :], most)


def _cuda_lines(main: MainThread, sources: Sequence[str], most: int) -> list[TextLine]:
    """Lines ``41.2 %  train.py:57  cuStreamSynchronize  1,920 calls, p99 3.1 ms  ← loss.item()``, or the reason why they are missing."""
    if main.no_cuda:
        return [TextLine("note", f"  CUDA calls were not watched: {clean(main.no_cuda)}")]
    if not main.cuda:
        return [TextLine("note", "  it made no CUDA synchronize and no memcpy in this time")]
    inside = 100 * min(1.0, sum(one.share for one in main.cuda))
    lines = [TextLine("title", f"inside CUDA calls {inside:.0f} % of its time, every call counted:")]
    lines += _columns([_cuda(*one) for one in zip(main.cuda[:most], sources, strict=False)])
    return lines + _rest([one.share for one in main.cuda[most:]])


def _share(share: LineShare, source: str) -> tuple[float, str, str, str]:
    return share.share, clean(share.place), clean(share.call or share.function), source


def _cuda(one: CudaLine, source: str) -> tuple[float, str, str, str]:
    calls = f"{one.calls:,} call{'s' if one.calls != 1 else ''}" if one.calls else "lasts still"
    p99 = f", p99 {_duration(one.p99_ns)}" if one.p99_ns is not None else ""
    what = f"{one.call}  {calls}{p99}, longest {_duration(one.max_ns)}"
    within = f", in {clean(one.inside)}" if one.inside else ""
    return one.share, clean(one.place), what, f"← {source or clean(one.via or one.function)}{within}"


def _columns(rows: Sequence[tuple[float, str, str, str]]) -> list[TextLine]:
    """Rows of share, place, call and source, in columns as wide as their content."""
    places = max((len(place) for _, place, _, _ in rows), default=0)
    doings = max((len(doing) for _, _, doing, _ in rows), default=0)
    texts = (f"{100 * share:5.1f} %  {place:<{places}}  {doing:<{doings}}  {source}" for share, place, doing, source in rows)
    return [TextLine("row", text.rstrip()) for text in texts]


def _rest(shares: Sequence[float]) -> list[TextLine]:
    return [TextLine("frame", f"{100 * sum(shares):5.1f} %  {len(shares)} more lines")] if shares else []


def _duration(ns: float) -> str:
    """``840 ns``, ``31 µs``, ``3.1 ms``, ``410 ms``, ``2.4 s``."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= size:
            return f"{ns / size:.{1 if ns < 10 * size else 0}f} {unit}"
    return f"{ns:.0f} ns"


def offcpu_lines(found: OffCpu, names: Mapping[int, str], most: int = 8) -> list[TextLine]:
    """The off-CPU stacks of each process's main thread, longest first; other threads are left out."""
    lines: list[TextLine] = []
    for pid, name in names.items():
        mine = [one for one in found.stacks if one.tid == pid]
        away = sum(one.ns for one in mine) / 1e9 / found.seconds
        shown = [one for one in mine[:most] if one.ns >= _LEAST_SHOWN * found.seconds * 1e9]
        share = f"{100 * min(1.0, away):.0f} % of {found.seconds:.1f} s"
        lines.append(TextLine("title", clean(f"{name} ({pid}): main thread off the CPU {share}")))
        lines += [TextLine("wait" if one.why == "preempted" else "kernel", _departure(one, found.seconds)) for one in shown]
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
    """The innermost ``depth`` frames and all frames of the user's code; the number of frames left out stands between them."""
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




def weigh_stacks(stacks: Iterable[Stack]) -> list[Weighted]:
    """One set of stacks, each with weight 1. Kernel frames follow the Python ones and end in ``_[k]``, by which scripts colour them."""
    counted = Counter(_frames_of(stack) for stack in stacks if stack.python or stack.kernel)
    return list(counted.items())


def _frames_of(stack: Stack) -> tuple[str, ...]:
    whose = f"{stack.thread} {stack.tid}" if stack.tid else f"{stack.thread} of {stack.pid}"
    return (whose, *reversed(stack.python), *(f"{name}{KERNEL_MARK}" for name in reversed(stack.kernel)))


def to_folded(weighted: Iterable[Weighted]) -> str:
    """Lines ``outermost;…;innermost weight``, one per stack."""
    return "".join(";".join(clean(frame).replace(";", ",") for frame in frames) + f" {weight}\n" for frames, weight in weighted)


def to_speedscope(weighted: Sequence[Weighted], name: str, unit: str = "none") -> dict[str, object]:
    """A document for https://www.speedscope.app (file-format-schema.json) with one sampled profile. ``unit``: none or nanoseconds."""
    index: dict[str, int] = {}
    samples = [[index.setdefault(frame, len(index)) for frame in frames] for frames, _ in weighted]
    weights = [weight for _, weight in weighted]
    profile = {
        "type": "sampled", "name": name, "unit": unit, "startValue": 0, "endValue": sum(weights), "samples": samples, "weights": weights,
    }  # fmt: skip
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [_described(frame) for frame in index]},
        "profiles": [profile],
        "name": name,
        "exporter": "gputop",
    }


def _described(frame: str) -> dict[str, object]:
    line = parse(frame)
    described: dict[str, object] = {"name": clean(line.name)}
    if line.file:
        described["file"] = clean(line.file)
    if line.line:
        described["line"] = line.line
    return described


def save(path: str, text: str) -> None:
    """Write a new file that only its owner may read. Raises UserError."""
    try:
        with whole_or_gone(path) as part, os.fdopen(create(part), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {clean(path)}: {error.strerror}") from error
