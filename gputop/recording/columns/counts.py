"""Columns of counts that grow, such as histograms: dicts of bucket -> count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from gputop.recording.columns.context import Context, bounded
from gputop.recording.columns.layout import ColumnError, Order, unpack_integers

MOST_BUCKETS = 1000
"""Several times those of `gputop.model.histogram`."""
MOST_COUNTS = 1_000_000
"""In all rows of a column."""


class Counts:
    """Those of the table at ``path`` that are told by what they have grown by."""

    __slots__ = ("_context", "_order", "_path")

    def __init__(self, context: Context, path: str, order: Order) -> None:
        self._context, self._path, self._order = context, path, order

    def values(self, name: str, packed: list[Any]) -> list[dict[int, int]]:
        """Of each row, in the order of subjects."""
        lengths, grown = self._growth(packed)
        out: list[dict[int, int]] = []
        left = MOST_COUNTS
        for (start, end), counts in zip(self._order.spans, self._stood(name), strict=True):
            for length in lengths[start:end]:
                if length:
                    counts = _with_growth(counts, list(islice(grown, length)))
                    left = bounded(left - len(counts), left)
                out.append(counts)
        return out

    def lasts(self, name: str, packed: list[Any]) -> list[dict[int, int]]:
        """Each subject's last value: all that it has grown by at once."""
        return self._context.lasts(f"{self._path}.{name}", "", self._order, lambda: self._lasts(name, packed))

    def _lasts(self, name: str, packed: list[Any]) -> list[dict[int, int]]:
        lengths, grown = self._growth(packed)
        stood = zip(self._order.spans, self._stood(name), strict=True)
        lasts = [_with_growth(before, list(islice(grown, sum(lengths[start:end])))) for (start, end), before in stood]
        bounded(sum(map(len, lasts)), MOST_COUNTS)
        return lasts

    def _growth(self, packed: list[Any]) -> tuple[list[int], Iterator[tuple[int, int]]]:
        """How many buckets have grown in each row, and all of these with by how much."""
        _, rows, buckets, growths = packed
        lengths = unpack_integers(rows, len(self._order.ids))
        count = bounded(sum(lengths), self._context.rows_left)
        return lengths, zip(unpack_integers(buckets, count), unpack_integers(growths, count), strict=True)

    def _stood(self, name: str) -> Sequence[dict[int, int]]:
        return self._context.stood(f"{self._path}.{name}", "", self._order, {})


def _with_growth(before: dict[int, int], grown: list[tuple[int, int]]) -> dict[int, int]:
    """Counts, some of which have grown, maybe more than once; a bucket all of whose count is taken is no more."""
    if not grown:
        return before
    counts = before.copy()
    for bucket, count in grown:
        counts[bucket] = counts.get(bucket, 0) + count
    if 0 in counts.values():
        taken = {bucket for bucket, count in grown if count}
        counts = {bucket: count for bucket, count in counts.items() if count or bucket not in taken}
    if len(counts) > MOST_BUCKETS:
        raise ColumnError("a distribution has too many buckets")
    return counts


def with_changes(changes: list[dict[int, int]], order: Order) -> list[dict[int, int]]:
    """What stood in each row, from what had changed in it."""
    known: dict[int, dict[int, int]] = {}
    for i, (subject, changed) in enumerate(zip(order.ids, changes, strict=True)):
        before = known.get(subject)
        if before is not None:
            merged = before | changed if changed else before
            changes[i] = {bucket: count for bucket, count in merged.items() if count} if 0 in changed.values() else merged
        known[subject] = changes[i]
    return changes
