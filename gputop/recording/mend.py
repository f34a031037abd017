"""Damaged blocks of a file, brought back where the parity behind them allows it."""

from __future__ import annotations

from bisect import bisect_right

from gputop.recording.format import FormatError
from gputop.recording.parity import MOST_BEHIND_BYTES, Group, block_in, groups, repaired
from gputop.recording.scan import Place

GROUPS_KEPT = 3
GROUPS_TRIED = 8  # behind a hole: each is told of twice, and mostly it lies in the first
MOST_REPAIRED = 16  # bytes of groups for each of the file's, lest groups that overlap are brought back for ever


class Mender:
    """Of the open file ``fd``. What was found once is not looked for again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._known: list[tuple[Group, bytes | None]] = []
        """Groups with their bytes, None where these cannot be brought back."""
        self._groups: list[tuple[int, Group]] = []
        """All groups up to `_searched`, with the ends of the blocks that tell of them."""
        self._searched = 0
        self._repaired = 0
        """Bytes of groups that were brought back, or tried."""

    def block(self, offset: int, end: int) -> tuple[Place, bytes]:
        """The block at an offset, and its payload; nothing is looked for from ``end`` on. FormatError where it cannot be brought back."""
        group, data = self._group(offset, end)
        if data is None:
            raise FormatError("more of a run is damaged than can be brought back")
        return block_in(data, group.start, offset)

    def place(self, offset: int, end: int) -> Place | None:
        """The same without its payload, None where it cannot be brought back."""
        try:
            return self.block(offset, end)[0]
        except FormatError:
            return None

    def fill(self, hole: int, until: int, end: int) -> tuple[list[Place], list[tuple[int, int]]]:
        """The blocks that stood in a hole between two whole ones, and (offset, bytes) of what remains lost there."""
        found, lost = list[Place](), list[tuple[int, int]]()
        while hole < until:
            place = self.place(hole, end)
            if place is not None and place.end <= until:
                found.append(place)
                hole = place.end
            else:
                following = self._behind(hole, end, beyond=True)
                goes_on = min(until, following.start) if following is not None else until
                lost.append((hole, goes_on - hole))
                hole = goes_on
        return found, lost

    def _behind(self, offset: int, end: int, beyond: bool = False) -> Group | None:
        """The first group that a table behind an offset tells of; or the first that begins ``beyond`` it."""
        if self._searched < end:
            for place, group in groups(self._fd, self._searched, end):
                self._searched = place.end
                if group is not None:
                    self._groups.append((place.end, group))
        first = bisect_right(self._groups, offset, key=lambda told: told[0])
        for told_at, group in self._groups[first : first + GROUPS_TRIED]:
            if told_at > min(end, offset + MOST_BEHIND_BYTES):
                break
            if not beyond or group.start > offset:
                return group
        return None

    def _group(self, offset: int, end: int) -> tuple[Group, bytes | None]:
        """The group that holds an offset, and its bytes. FormatError where there is none."""
        known = next((known for known in self._known if offset in known[0]), None)
        if known is None:
            group = self._behind(offset, end)
            if group is None or offset not in group:
                raise FormatError("a block is damaged")
            self._repaired += group.table.length
            known = group, repaired(self._fd, group) if self._repaired <= MOST_REPAIRED * end else None
            self._known = [*self._known[-GROUPS_KEPT:], known]
        return known
