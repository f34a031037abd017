"""A file's blocks as they are read: what they build upon is read before, and what is damaged is brought back where it can be."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import gt

from gputop.model.frame import Frame
from gputop.recording.columns.decode import Table
from gputop.recording.columns.layout import ColumnError
from gputop.recording.compact import MOST_IN_RUN, Unpacker
from gputop.recording.contents import Contents
from gputop.recording.format import COLUMNS, FLAG_FOLLOWS, KIND_FRAMES, KIND_REFERENCE, FormatError
from gputop.recording.scan import Place, payload_at, place_at, scan

REFERENCES_TRIED, COPIES_TRIED = 6, 2


class Blocks:
    """Of the open file ``fd``, whose ``contents`` may grow."""

    def __init__(self, fd: int, contents: Contents) -> None:
        self.lost: dict[int, int] = {}
        """Offset -> damaged bytes there, as far as it has been read."""
        self._fd = fd
        self._contents = contents
        self._unpacker = Unpacker()
        self._reached: tuple[Place | None, int] = None, 0
        self._names: dict[int, int] = {}
        """Of the references read so far, by offset."""
        self._hopeless: tuple[int, set[int]] = 0, set()
        """Names of what was looked for in vain while the file ended there."""

    def between(self, start: int, end: int) -> list[Place]:
        """The blocks of frames between two offsets."""
        places = scan(self._fd, start, end)
        if end <= self._contents.end:
            for edge, offset in _holes(start, places, end):
                places += self._fill(edge, offset)
            places.sort(key=lambda place: place.offset)
        return self._ascending([place for place in places if place.head.kind == KIND_FRAMES])

    def _ascending(self, places: list[Place]) -> list[Place]:
        """Without those that go back in time, which are counted as lost: who looks for a moment must find it."""
        reached_ns, kept = 0, []
        for place in places:
            if place.head.t_ns < reached_ns:
                self.give_up(place)
            else:
                reached_ns = place.head.t_ns
                kept.append(place)
        return kept

    def _fill(self, edge: int, offset: int) -> list[Place]:
        """The blocks that stood between two whole ones, as far as they can be brought back; the others are counted as lost."""
        found, lost = self._contents.mender.fill(edge, offset, self._contents.end)
        for place in found:
            self.lost.pop(place.offset, None)
        # A reference has no frames: where its copy is damaged too, the blocks that build upon it are counted.
        self.lost.update({at: count for at, count in lost if at not in self._contents.references})
        return found

    def _mend(self, offset: int) -> tuple[Place, bytes]:
        """Bring back the block at an offset, and its payload. Raises FormatError."""
        return self._contents.mender.block(offset, self._contents.end)

    def frames(self, place: Place) -> Sequence[Frame]:
        """The frames of a block; none where it is damaged."""
        try:
            frames = self._unpacker.frames(self._payload(place), place.head.codec)
            self._note(place, [frame.t_ns for frame in frames])
        except FormatError:
            self.give_up(place)
            return ()
        self.lost.pop(place.offset, None)  # what it builds upon may have been mended since
        return frames

    def table(self, place: Place) -> Table | None:
        """The columns of a block, None where it has none or is damaged."""
        if place.head.codec not in COLUMNS:
            return None
        try:
            table = self._unpacker.table(self._payload(place), place.head.codec)
            self._note(place, table.column("t_ns"))
            return table
        except (FormatError, ColumnError):
            self.give_up(place)
            return None

    def _note(self, place: Place, times: Sequence[int]) -> None:
        """Where a block has come to. Raises FormatError where it does not begin when its head says, or goes back."""
        if times and (times[0] != place.head.t_ns or any(map(gt, times, times[1:]))):
            raise FormatError("a block's times cannot be")
        self._reached = place, times[-1] if times else 0

    def reached_ns(self, place: Place) -> int:
        """When the last frame of a block was, 0 where it is not the one that was read last."""
        return self._reached[1] if self._reached[0] is place else 0

    def verify(self, place: Place) -> None:
        """Count a block as lost where its bytes are damaged; it is not decoded."""
        try:
            self._raw(place)
        except FormatError:
            self.give_up(place)

    def give_up(self, place: Place) -> None:
        """Count a block as lost."""
        self.lost[place.offset] = place.end - place.offset

    def _payload(self, place: Place) -> bytes:
        """A block's payload, what it builds upon being read."""
        payload = self._raw(place)
        wanted = self._unpacker.missing(payload, place.head.codec)
        if self._hopeless[0] != self._contents.end:
            self._hopeless = self._contents.end, set()
        if not wanted or wanted in self._hopeless[1]:
            return payload
        if place.head.flags & FLAG_FOLLOWS:
            self._read_run(place)
        else:
            self._learn(place.offset, wanted)
        if self._unpacker.missing(payload, place.head.codec):
            self._hopeless[1].add(wanted)
        self._unpacker.budget.place = place.offset
        return payload

    def _raw(self, place: Place) -> bytes:
        """A block's payload, which is the next that the unpacker is given."""
        self._unpacker.budget.stored_bytes, self._unpacker.budget.place = self._contents.end, place.offset
        try:
            return payload_at(self._fd, place)
        except FormatError:
            return self._mend(place.offset)[1]

    def _read_run(self, before: Place) -> None:
        """Open the blocks of a run that stand before one of its blocks, as far as that can be."""
        i, run = bisect_right(self._contents.chunks, before.offset, key=lambda chunk: chunk[1]) - 1, [before]
        end = before.offset
        while run[0].head.flags & FLAG_FOLLOWS and i >= 0 and len(run) <= MOST_IN_RUN:
            start = self._contents.chunks[i][1]
            blocks = self.between(start, end)
            begin = max((j for j, place in enumerate(blocks) if not place.head.flags & FLAG_FOLLOWS), default=0)
            run, i, end = blocks[begin:] + run, i - 1, start
        try:
            for place in run[:-1]:
                payload = self._raw(place)
                if wanted := self._unpacker.missing(payload, place.head.codec):
                    self._learn(place.offset, wanted)
                    self._unpacker.budget.place = place.offset
                self._unpacker.table(payload, place.head.codec)
        except FormatError:
            return

    def _learn(self, before: int, wanted: int) -> None:
        """Look for a reference among the last ones before an offset, or for its copy behind it."""
        references = self._contents.references
        i = bisect_left(references, before)
        for offset in (*reversed(references[max(0, i - REFERENCES_TRIED) : i]), *references[i : i + COPIES_TRIED]):
            if self._teaches(offset, wanted):
                return

    def _teaches(self, offset: int, wanted: int) -> bool:
        """Whether the reference at an offset, if one stands there, is the wanted one; it is then known."""
        try:
            if self._names.get(offset, wanted) != wanted:
                return False
            place = place_at(self._fd, offset) or self._mend(offset)[0]
            if place.head.kind != KIND_REFERENCE:
                return False
            name = self._names[offset] = self._unpacker.learn(self._raw(place), place.head.codec)
            return name == wanted
        except FormatError:
            return False


def _holes(start: int, places: list[Place], end: int) -> list[tuple[int, int]]:
    """Where between two offsets no whole block stands."""
    edges = [start, *(place.end for place in places)]
    following = [*(place.offset for place in places), end]
    return [(edge, offset) for edge, offset in zip(edges, following, strict=True) if edge < offset]
