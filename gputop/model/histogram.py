"""The probes' logarithmic histograms of durations, four buckets to the octave.

Bucket ``4 * o + s`` holds durations from ``2**o * (1 + s/4)`` ns to ``2**o * (1 + (s+1)/4)`` ns: it is about a fifth of its value wide. The
probes keep the buckets `FIRST` (everything below 640 ns) to `LAST` (everything from 32 minutes on).
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST, LAST = 36, 163  # buckets, as in probes/common.h
COUNT = LAST - FIRST + 1


def bucket_of(ns: int) -> int:
    """The bucket of a duration, as probes/common.h computes it."""
    octave = max(ns, 1).bit_length() - 1
    return min(max(4 * octave + ((ns << 2 >> octave) & 3), FIRST), LAST)


def floor_ns(bucket: int) -> int:
    """The shortest duration in ``bucket``, ns; 0 for the first bucket."""
    return 0 if bucket <= FIRST else (4 + bucket % 4 << bucket // 4) >> 2


def ceil_ns(bucket: int) -> int:
    """The shortest duration above ``bucket``, ns."""
    return floor_ns(max(bucket, FIRST) + 1)


def quantile(counts: Mapping[int, int], q: float, max_ns: int | None = None, sums: Mapping[int, int] | None = None) -> float | None:
    """The ``q`` quantile (0 to 1) of a histogram in ns; None if it is empty. ``counts``: what one interval added to each bucket.

    With ``sums`` (bucket -> ns) the result is the mean of its bucket, otherwise it is interpolated within the bucket. ``max_ns``, the
    exact maximum, bounds it.
    """
    total = sum(counts.values())
    if total <= 0:
        return None
    rank, below = q * total, 0
    for bucket in sorted(counts):
        count = counts[bucket]
        if count > 0 and below + count >= rank:
            break
        below += count
    value = _within(bucket, count, rank - below, sums)
    return value if max_ns is None else min(value, float(max_ns))


def _within(bucket: int, count: int, rank: float, sums: Mapping[int, int] | None) -> float:
    if sums and sums.get(bucket, 0) > 0:
        return sums[bucket] / count
    low, high = floor_ns(bucket), ceil_ns(bucket)
    return low + (high - low) * rank / count
