"""Several recordings of one machine, as rotation leaves them, read as one."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from itertools import accumulate, pairwise

from gputop.model.frame import Header, Mark
from gputop.recording.format import TICKS, TIERS
from gputop.recording.reader import FileChunk, Recording, missing_words
from gputop.recording.seek import Seeker
from gputop.system.errors import UserError
from gputop.system.text import clean

_OFFSET_BITS = 48  # of an offset in a part; above them stands which part


def open_recording(paths: Sequence[str]) -> Recording:
    """Open one recording, or several as one. Raises UserError, a FormatError if a file is no recording.

    An empty file among several is left out, and reported as a problem: a recorder may have had no room for more.
    """
    if len(paths) == 1:
        return Recording(paths[0])
    empty = [path for path in paths if os.path.isfile(path) and not os.path.getsize(path)]
    told = [path for path in paths if path not in empty] or paths
    with ExitStack() as opened:
        parts = sorted((opened.enter_context(Recording(path)) for path in told), key=lambda part: (part.start_ns, part.end_ns))
        for before, after in pairwise(parts):
            _check(before, after)
        opened.pop_all()
    return Parts(parts, empty)


def _check(before: Recording, after: Recording) -> None:
    """UserError if one cannot be what comes after another."""
    names = f"{clean(before.path)} and {clean(after.path)}"
    if before.header.boot_id != after.header.boot_id:
        raise UserError(f"{names} are of different machines, or a restart lies between them: they have no clock in common")
    if after.start_ns <= before.end_ns and len(before.chunks()) and len(after.chunks()):
        raise UserError(f"{names} cover the same time: read one of them")


class Parts(Recording):
    """Recordings in order of time, on one clock; they end with it."""

    def __init__(self, parts: Sequence[Recording], empty: Sequence[str]) -> None:
        self._parts = parts
        self._told = [part for part in parts if len(part.chunks())] or parts[:1]
        self._empty = empty
        self.path = f"{parts[0].path} and {len(parts) + len(empty) - 1} more"
        self.header = self._dated_by_all()
        self.tier = TICKS
        self._seekers = {tier: Seeker(self.header) for tier in TIERS}
        self.missing = {}

    @property
    def first_path(self) -> str:
        """Path of the first part."""
        return self._parts[0].path

    def close(self) -> None:
        """Close the files."""
        for part in self._parts:
            part.close()

    @property
    def start_ns(self) -> int:
        """CLOCK_MONOTONIC ns of the first frame of the first part."""
        return self._told[0].start_ns

    @property
    def end_ns(self) -> int:
        """CLOCK_MONOTONIC ns of the last frame of the last part."""
        return self._told[-1].end_ns

    @property
    def lost(self) -> dict[int, int]:
        """Part and offset -> damaged bytes there, as far as they have been read."""
        return {number << _OFFSET_BITS | at: count for number, part in enumerate(self._parts) for at, count in part.lost.items()}

    def verify(self) -> None:
        """Read all parts whole, so that `lost` knows every damaged byte."""
        for part in self._parts:
            part.verify()

    @property
    def growing(self) -> bool:
        """True if a recorder still appends to any part."""
        return any(part.growing for part in self._parts)

    @property
    def problem(self) -> str:
        """Losses of the recordings, as far as they have been read; empty if nothing is lost."""
        lost = [f"{clean(part.path)}: {problem}" for part in self._parts if (problem := part.problem)]
        missing = [missing_words(self.missing)] if self.missing else []
        return "; ".join([*lost, *missing, *(f"{clean(path)} is empty and left out" for path in self._empty)])

    @property
    def marks(self) -> list[Mark]:
        """All markers, in order."""
        return [mark for part in self._told for mark in part.marks]

    def findings(self) -> None:
        """None: each recorder's findings are about its own file alone, so the whole is judged again."""

    def refresh(self) -> bool:
        """Take in what was appended since; whether there was anything."""
        grown = sum(part.refresh() for part in self._told) > 0
        self.header = self._dated_by_all()
        for seeker in self._seekers.values():
            seeker.header = self.header
        return grown

    def _dated_by_all(self) -> Header:
        return reduce(Header.dated, (part.header for part in self._parts))

    def chunks(self, tier: int = TICKS) -> Sequence[FileChunk]:
        """Chunks of a tier, of all parts in order."""
        return _Joined([part.chunks(tier) for part in self._told])


class _Joined(Sequence[FileChunk]):
    def __init__(self, lists: Sequence[Sequence[FileChunk]]) -> None:
        self._lists = lists
        self._starts = [0, *accumulate(map(len, lists))]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, i: int) -> FileChunk:  # type: ignore[override]
        at = range(len(self))[i]
        number = bisect_right(self._starts, at) - 1
        return self._lists[number][at - self._starts[number]]
