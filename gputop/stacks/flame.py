"""Stacks with weights as one tree of frames, whose widths are their shares: for a flame graph on the screen and as SVG.

The outermost frame is on top (an icicle), and of the frames that one frame has called the heaviest stands first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gputop.stacks.frames import Line, Weighted, parse
from gputop.system.text import clean, counted

MOST_DEPTH = 512  # frames of a stack that are drawn, the outermost
KERNEL_MARK = "_[k]"  # end of a kernel frame's text, as scripts for flame graphs have it
OWN, LIBRARY, KERNEL, THREAD = KINDS = "own", "library", "kernel", "thread"
"""Kinds of frames: the user's Python, other Python and native code, the kernel, and the name of a thread or of all threads."""


class FlameFrame:
    """A frame with its weight, from ``start`` on; ``children`` are what it called, the heaviest first."""

    __slots__ = ("children", "depth", "parent", "start", "text", "weight")

    def __init__(self, text: str, parent: FlameFrame | None) -> None:
        self.text, self.parent = text, parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.start = self.weight = 0
        self.children: list[FlameFrame] = []

    @property
    def line(self) -> Line:
        """Its function, file and line."""
        return parse(self.text.removesuffix(KERNEL_MARK))

    @property
    def kind(self) -> str:
        """A word of `KINDS`."""
        if self.text.endswith(KERNEL_MARK):
            return KERNEL
        line = self.line
        return THREAD if not line.file else LIBRARY if line.library else OWN

    @property
    def name(self) -> str:
        """Its whole name, cleaned: ``__getitem__ data.py:41``."""
        line = self.line
        return clean(f"{line.name} {line.place}" if line.file else line.name)

    @property
    def full(self) -> str:
        """Its function and its file with the whole path, cleaned."""
        line = self.line
        return clean(line.text if line.file else line.name)

    def walk(self) -> Iterator[FlameFrame]:
        """The frame and all below it, parents before children."""
        left = [self]
        while left:
            one = left.pop()
            yield one
            left += reversed(one.children)

    @property
    def way(self) -> list[FlameFrame]:
        """The frames from the root to this one."""
        found, one = [self], self.parent
        while one is not None:
            found.append(one)
            one = one.parent
        return found[::-1]


def flame_tree(weighted: Iterable[Weighted]) -> FlameFrame:
    """The tree of all stacks; its root is named ``all``."""
    root = FlameFrame("all", None)
    known: dict[tuple[int, str], FlameFrame] = {}
    for frames, weight in weighted:
        one = root
        one.weight += weight
        for text in frames[:MOST_DEPTH]:
            key = id(one), text
            if key not in known:
                known[key] = FlameFrame(text, one)
                one.children.append(known[key])
            one = known[key]
            one.weight += weight
    for one in root.walk():
        at = one.start
        one.children.sort(key=lambda child: (-child.weight, child.text))
        for child in one.children:
            child.start = at
            at += child.weight
    return root


def amount_of(weight: int, unit: str) -> str:
    """``412 samples``, or seconds where the unit is ``nanoseconds``."""
    return f"{weight / 1e9:.2f} s" if unit == "nanoseconds" else counted(weight, unit)


def share_of(one: FlameFrame, whole: FlameFrame) -> str:
    """``12.3 %``."""
    return f"{100 * one.weight / max(1, whole.weight):.1f} %"


def heaviest(root: FlameFrame, most: int, least: float) -> Sequence[FlameFrame]:
    """At most ``most`` frames of a share of at least ``least``, the heaviest; none without its parent."""
    found = [one for one in root.walk() if one.weight >= least * root.weight]
    return sorted(found, key=lambda one: (-one.weight, one.depth))[:most]
