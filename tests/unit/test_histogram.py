"""Buckets of durations against arithmetic, quantiles against known samples."""

from __future__ import annotations

import struct

import pytest

from gputop.model import histogram
from gputop.sources.ebpf.sched import counted_on


@pytest.mark.parametrize("ns", [0, 1, 639, 640, 1_000, 5_000_000, 41_000_000, 90_000_000_000])
def test_a_duration_lies_within_its_bucket(ns: int) -> None:
    bucket = histogram.bucket_of(ns)
    assert histogram.floor_ns(bucket) <= ns < histogram.ceil_ns(bucket)


def test_buckets_leave_no_hole_and_do_not_overlap() -> None:
    for bucket in range(histogram.FIRST, histogram.LAST):
        assert histogram.ceil_ns(bucket) == histogram.floor_ns(bucket + 1)
        assert histogram.bucket_of(histogram.ceil_ns(bucket)) == bucket + 1


def test_what_is_longer_than_the_last_bucket_stays_in_it() -> None:
    assert histogram.bucket_of(10**15) == histogram.LAST


def test_quantile_of_nothing_is_none() -> None:
    assert histogram.quantile({}, 0.5) is None
    assert histogram.quantile({40: 0}, 0.5) is None


def test_quantile_lies_within_a_bucket_of_the_truth() -> None:
    samples = [1_000 * (i + 1) for i in range(1_000)]
    counts: dict[int, int] = {}
    for ns in samples:
        counts[histogram.bucket_of(ns)] = counts.get(histogram.bucket_of(ns), 0) + 1
    for q in (0.5, 0.9, 0.99):
        value = histogram.quantile(counts, q, max_ns=max(samples))
        assert value == pytest.approx(samples[int(q * 1_000) - 1], rel=0.05)


def test_sums_make_a_quantile_exact_where_a_bucket_holds_one_length() -> None:
    bucket = histogram.bucket_of(7_200_000)
    assert histogram.quantile({bucket: 40}, 0.99, sums={bucket: 40 * 7_200_000}) == 7_200_000


def test_no_quantile_exceeds_the_longest() -> None:
    assert histogram.quantile({histogram.bucket_of(5_100_000): 3}, 0.99, max_ns=4_300_000) == 4_300_000


def test_counts_that_went_on_are_those_of_the_whole_histogram() -> None:
    last = histogram.COUNT - 1
    counts = {0: 1, 5: 7, last: 2}
    before, grown = _packed(counts), {0: 1, 5: 9, 63: 1, last: 0xFFFF_FFFF}
    by_bucket = {histogram.FIRST + at: count for at, count in counts.items()}
    assert counted_on(before, by_bucket, _packed(grown)) == {histogram.FIRST + at: count for at, count in grown.items()}
    assert by_bucket[histogram.FIRST + 5] == 7
    assert counted_on(before, by_bucket, before) == by_bucket


def _packed(counts: dict[int, int]) -> bytes:
    return struct.pack(f"<{histogram.COUNT}I", *(counts.get(at, 0) for at in range(histogram.COUNT)))
