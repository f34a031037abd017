"""A file's blocks as they are read: what they build upon is read before, and what is damaged is brought back where it can be."""

from __future__ import annotations

from bisect import bisect_left
from bisect import bisect_right
from bisect import insort
from collections.abc import Sequence

from gputop.frame import Frame
from gputop.recording.columns.decode import Table
from gputop.recording.compact import MOST_IN_RUN
from gputop.recording.compact import Unpacker
from gputop.recording.contents import Contents
from gputop.recording.format import COLUMNS
from gputop.recording.format import FLAG_FOLLOWS
from gputop.recording.format import KIND_FRAMES
from gputop.recording.format import KIND_REFERENCE
from gputop.recording.format import FormatError
from gputop.recording.parity import mend
from gputop.recording.scan import Place
from gputop.recording.scan import payload_at
from gputop.recording.scan import place_at
from gputop.recording.scan import scan

REFERENCES_TRIED, COPIES_TRIED = 6, 2
MENDINGS_KEPT = 8


class Blocks:
    """Of the open file ``fd``, whose ``contents`` may grow."""

    def __init__(self, fd: int, contents: Contents) -> None:
        self.lost: dict[int, int] = {}
        """Offset -> damaged bytes there, as far as it has been read."""
        self._fd = fd
        self._contents = contents
        self._unpacker = Unpacker()
        self._mendings: dict[int, bytes] = {}
        """Offset -> payload of a damaged block that was brought back."""

    def between(self, start: int, end: int) -> list[Place]:
        """The blocks of frames between two offsets."""
        places = scan(self._fd, start, end)
        if end <= self._contents.end:
            lost = sum(self._fill(places, edge, offset) for edge, offset in _holes(start, places, end))
            if lost:
                self.lost[start] = lost
        return [place for place in places if place.head.kind == KIND_FRAMES]

    def _fill(self, places: list[Place], edge: int, offset: int) -> int:
        """Bring back the blocks that stood between two whole ones, as far as that can be; how many bytes remain lost."""
        if edge in self._contents.references:
            return 0  # no frames: where the other copy is damaged too, the blocks that build upon it are counted
        while edge < offset:
            try:
                place = self._mend(edge)
            except FormatError:
                break
            if place.end > offset:
                break
            insort(places, place, key=lambda place: place.offset)
            edge = place.end
        return offset - edge

    def _mend(self, offset: int) -> Place:
        """Bring back the block at an offset. Raises FormatError."""
        place, payload = mend(self._fd, offset, self._contents.end)
        if len(self._mendings) >= MENDINGS_KEPT:
            self._mendings.clear()
        self._mendings[offset] = payload
        return place

    def frames(self, place: Place) -> Sequence[Frame]:
        """The frames of a block; none where it is damaged."""
        try:
            return self._unpacker.frames(self._payload(place), place.head.codec)
        except FormatError:
            self.give_up(place)
            return ()

    def table(self, place: Place) -> Table | None:
        """The columns of a block, None where it has none or is damaged."""
        if place.head.codec not in COLUMNS:
            return None
        try:
            return self._unpacker.table(self._payload(place), place.head.codec)
        except FormatError:
            self.give_up(place)
            return None

    def give_up(self, place: Place) -> None:
        """Count a block as lost."""
        self.lost[place.offset] = place.end - place.offset

    def _payload(self, place: Place) -> bytes:
        """A block's payload, what it builds upon being read."""
        payload = self._raw(place)
        wanted = self._unpacker.missing(payload, place.head.codec)
        if wanted and place.head.flags & FLAG_FOLLOWS:
            self._read_run(place)
        elif wanted:
            self._learn(place.offset, wanted)
        return payload

    def _raw(self, place: Place) -> bytes:
        if place.offset in self._mendings:
            return self._mendings[place.offset]
        try:
            return payload_at(self._fd, place)
        except FormatError:
            self._mend(place.offset)
            return self._mendings[place.offset]

    def _read_run(self, before: Place) -> None:
        """Open the blocks of a run that stand before one of its blocks. Raises FormatError."""
        i, run = bisect_right(self._contents.chunks, before.offset, key=lambda chunk: chunk[1]) - 1, [before]
        end = before.offset
        while run[0].head.flags & FLAG_FOLLOWS and i >= 0 and len(run) <= MOST_IN_RUN:
            start = self._contents.chunks[i][1]
            blocks = self.between(start, end)
            begin = max((j for j, place in enumerate(blocks) if not place.head.flags & FLAG_FOLLOWS), default=0)
            run, i, end = blocks[begin:] + run, i - 1, start
        for place in run[:-1]:
            self._unpacker.table(self._payload(place), place.head.codec)

    def _learn(self, before: int, wanted: int) -> None:
        """Look for a reference among the last ones before an offset, or for its copy behind it."""
        references = self._contents.references
        i = bisect_left(references, before)
        for offset in (*reversed(references[max(0, i - REFERENCES_TRIED) : i]), *references[i : i + COPIES_TRIED]):
            place = place_at(self._fd, offset)
            if place is None or place.head.kind != KIND_REFERENCE:
                continue
            try:
                if self._unpacker.learn(payload_at(self._fd, place), place.head.codec) == wanted:
                    return
            except FormatError:
                continue


def _holes(start: int, places: list[Place], end: int) -> list[tuple[int, int]]:
    """Where between two offsets no whole block stands."""
    edges = [start, *(place.end for place in places)]
    following = [*(place.offset for place in places), end]
    return [(edge, offset) for edge, offset in zip(edges, following, strict=True) if edge < offset]
