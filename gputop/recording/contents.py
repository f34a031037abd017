"""What a recording's file holds, without its frames: where chunks and references begin, and which blocks hold markers."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from gputop.model.frame import Mark
from gputop.recording.format import ENDS, FLAG_KEY, FLAG_MARK, KIND_FRAMES, KIND_HEADER, KIND_REFERENCE, MAGIC
from gputop.recording.mend import Mender
from gputop.recording.scan import Place, begins_stream, places, read_indices

HEADER_BYTES = 1 << 16
"""More than a header takes."""


class Contents(Struct):
    """Grows with the file."""

    mender: Mender
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """(t_ns of the first frame, offset) of each chunk."""
    references: list[int] = field(default_factory=list)
    """Offsets of all copies of references, ascending."""
    marks: list[Mark] = field(default_factory=list)
    """Markers that the index tells of."""
    marked: list[Place] = field(default_factory=list)
    """Later blocks that hold markers."""
    last: Place | None = None
    """The last block of frames, None where only the index was looked at."""
    end_ns: int = 0
    """Time of the last frame that the index tells of."""
    findings: int = 0
    """Offset of the findings that the last index tells of, 0 for none."""
    end: int = len(MAGIC)
    """Offset behind the last whole block."""
    ended: bool = False
    """Whether that is of `ENDS`."""
    header: Place | None = None
    """The last one, by the clocks as they were known last."""
    another: int = 0
    """Offset at which another stream begins, as after `cat a b`, 0 for none: what stands there is not looked at."""
    _referred_ns: int = 0
    """Time of the first frame behind the last reference."""

    @classmethod
    def load(cls, fd: int, size: int) -> Contents:
        """From the index as far as that goes, then from the heads of blocks."""
        contents = cls(mender := Mender(fd))
        for place, index in read_indices(fd, size, lambda offset: mender.place(offset, size)):
            contents.chunks += index.chunks
            contents.references += index.references
            contents.marks += index.marks
            contents.header = _header_before(fd, place.offset)
            contents.end_ns, contents.end, contents.findings, contents.ended = index.end_ns, place.end, index.findings, True
        contents.extend(fd, size)
        return contents

    def extend(self, fd: int, size: int) -> None:
        """Look at what was appended."""
        for place in self._places(fd, self.another or size):
            if self.end > len(MAGIC) and begins_stream(fd, place):
                self.another = place.offset - len(MAGIC)
                return
            if place.head.kind == KIND_HEADER:
                self.header = place
            elif place.head.kind == KIND_REFERENCE:
                self.references.append(place.offset)
                self._referred_ns = place.head.t_ns
            elif place.head.kind == KIND_FRAMES:
                self._take(place)
            self.end, self.ended = place.end, place.head.kind in ENDS

    def _places(self, fd: int, size: int) -> Iterator[Place]:
        """The blocks from `end` on, with those that can be brought back among them."""
        edge = self.end
        for place in places(fd, edge, size):
            if place.offset > edge:
                yield from self.mender.fill(edge, place.offset, size)[0]
            yield place
            edge = place.end

    def _take(self, place: Place) -> None:
        """The first chunk begins behind its reference, which has its time: what is damaged between may have been its first block."""
        if not self.chunks:
            self.chunks.append((min(self._referred_ns or place.head.t_ns, place.head.t_ns), self.end))
        elif place.head.flags & FLAG_KEY and place.head.t_ns >= self.chunks[-1][0]:
            self.chunks.append((place.head.t_ns, place.offset))
        if place.head.flags & FLAG_MARK:
            self.marked.append(place)
        self.last = place


def _header_before(fd: int, offset: int) -> Place | None:
    """The header that is restated right before an index."""
    found = [place for place in places(fd, max(0, offset - HEADER_BYTES), offset) if place.head.kind == KIND_HEADER]
    return found[-1] if found and found[-1].end == offset else None
