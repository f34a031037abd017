"""From what columns tell to values: running sums, and what is absent, told less another or said to be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat
from operator import sub
from typing import Any

from gputop.model.frame import ThreadSample
from gputop.recording.columns.layout import INT64, ColumnError, FieldPlan, Order


def whole(numbers: list[int]) -> list[int]:
    """``numbers``, where each is of 64 bits. Raises ColumnError."""
    if numbers and (min(numbers) not in INT64 or max(numbers) not in INT64):
        raise ColumnError("a number is beyond 64 bits")
    return numbers


def with_absent(field: FieldPlan, absent: bytes | None, values: list[Any]) -> Sequence[Any]:
    """``values``, with None where they are absent. Raises ColumnError."""
    if absent is None:
        return values
    if not field.nullable or len(absent) != len(values):
        raise ColumnError("values are absent that must be there")
    return [None if gone else value for gone, value in zip(absent, values, strict=True)]


def with_absent_at_last(field: FieldPlan, absent: bytes | None, values: list[Any], order: Order) -> Sequence[Any]:
    """The same of ``values`` that are of each subject's last row."""
    return with_absent(field, None if absent is None else bytes(order.at_ends(absent)), values)


def with_switches(slices: Sequence[Any], vol: Sequence[Any], invol: Sequence[Any]) -> Sequence[Any]:
    """Time slices, which are told less the switches."""
    return [count if count is None else count + (a or 0) + (b or 0) for count, a, b in zip(slices, vol, invol, strict=True)]


def with_main(mains: Iterable[tuple[Any, ...]], lengths: list[int], threads: list[ThreadSample]) -> list[ThreadSample]:
    """Threads, so many of each process, the main ones of which only said that they repeat their process's sample, ``mains``."""
    owners = chain.from_iterable(repeat(main, length) for main, length in zip(mains, lengths, strict=True))
    return [
        main_thread(main) if thread.timeslices == -1 and thread.tid == main[0] else thread
        for thread, main in zip(threads, owners, strict=True)
    ]


def main_thread(main: tuple[Any, ...]) -> ThreadSample:
    """What repeats its process's sample. Raises ColumnError where that does not tell what a thread always does."""
    if None in main[1:4]:
        raise ColumnError("a main thread repeats what its process does not tell")
    return ThreadSample(*main)


def times(unit: int, numbers: list[int]) -> list[int]:
    """``numbers`` in another unit. Raises ColumnError where that is none."""
    if type(unit) is not int or unit not in INT64 or unit <= 0:
        raise ColumnError("a column has an impossible unit")
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
