"""From what columns tell to values: running sums, and counts that grow."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from itertools import accumulate
from itertools import chain
from operator import sub
from typing import Any

from gputop.recording.columns.layout import ColumnError
from gputop.recording.columns.layout import Order

MOST_BUCKETS = 1000
"""Several times those of `gputop.histogram`."""


def with_growth(before: dict[int, int], grown: list[tuple[int, int]]) -> dict[int, int]:
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


def with_switches(slices: Sequence[Any], vol: Sequence[Any], invol: Sequence[Any]) -> Sequence[Any]:
    """Time slices, which are told less the switches."""
    return [count if count is None else count + (a or 0) + (b or 0) for count, a, b in zip(slices, vol, invol, strict=True)]


def times(unit: int, numbers: list[int]) -> list[int]:
    """``numbers`` in another unit."""
    return numbers if unit == 1 else [number * unit for number in numbers]


def per_subject(steps: list[int], order: Order) -> list[int]:
    """The sum of each subject's steps."""
    ends = order.at_ends(list(accumulate(steps)))
    return list(map(sub, ends, chain((0,), ends)))


def onward(before: Sequence[int], steps: list[int], order: Order) -> list[int]:
    """Running sums of the steps, each subject's from where it stood before."""
    reached = 0
    for start, stood, grown in zip(order.starts, before, per_subject(steps, order), strict=True):
        steps[start] += stood - reached
        reached = stood + grown
    return list(accumulate(steps))


def sums(anchors: list[int], steps: list[int], spans: Iterable[tuple[int, int]], from_last: bool) -> list[int]:
    """Running sums of the steps, anew in each of ``spans`` so that it begins, or ends, with its anchor."""
    totals = list(accumulate(steps))
    offset = 0
    for (start, end), anchor in zip(spans, anchors, strict=True):
        steps[start] = anchor - totals[end - 1 if from_last else start] - offset
        offset += steps[start]
    return list(accumulate(steps))
