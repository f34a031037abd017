"""Damaged blocks of a file, brought back where the parity behind them allows it."""

from __future__ import annotations

from gputop.recording.format import FormatError
from gputop.recording.parity import MOST_BEHIND_BYTES
from gputop.recording.parity import Group
from gputop.recording.parity import block_in
from gputop.recording.parity import groups
from gputop.recording.parity import repaired
from gputop.recording.scan import Place

GROUPS_KEPT = 3


class Mender:
    """Of the open file ``fd``. What was found once is not looked for again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._known: list[tuple[Group, bytes | None]] = []
        """Groups with their bytes, None where these cannot be brought back."""
        self._barren = 0, 0
        """A stretch that was searched in vain for a parity."""

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
        first, last = self._barren
        begin = reached = max(offset + 1, last) if first <= offset else offset + 1
        told = False
        for place, group in groups(self._fd, begin, min(end, offset + MOST_BEHIND_BYTES)):
            if group is not None and (not beyond or group.start > offset):
                return group
            reached, told = place.end, told or group is not None
        if not told:
            self._barren = first if first <= offset <= last else offset, reached
        return None

    def _group(self, offset: int, end: int) -> tuple[Group, bytes | None]:
        """The group that holds an offset, and its bytes. FormatError where there is none."""
        known = next((known for known in self._known if offset in known[0]), None)
        if known is None:
            group = self._behind(offset, end)
            if group is None or offset not in group:
                raise FormatError("a block is damaged")
            known = group, repaired(self._fd, group)
            self._known = [*self._known[-GROUPS_KEPT:], known]
        return known
