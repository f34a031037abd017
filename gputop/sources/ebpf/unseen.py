"""Estimates of what the scheduler's programs did not see while they were detached (`gputop.sources.ebpf.switches`).

What the last windows counted in a nanosecond is taken for the time up to the next one. Estimates are added to what the programs count, so
sums go on growing, whether the programs are attached or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

WINDOWS = 3  # windows that are averaged for the estimate
LASTS = {"sleeping": "sleeping_ns", "uninterruptible": "uninterruptible_ns"}
"""State of a thread -> the sum that the programs let grow while they are detached (probes/sched.c, meet_again)."""

Counts = dict[Any, float]  # a field's name, or the number of a bucket -> what it counts
Sample = TypeVar("Sample", bound=msgspec.Struct)


class Unseen(Generic[Sample]):
    """The estimates of one kind of sample, by its key."""

    def __init__(self, key: Callable[[Sample], Any], fields: tuple[str, ...]) -> None:
        self._key, self._fields = key, fields
        self._has_hist = "hist" in fields
        self._plain = tuple(name for name in fields if name != "hist")
        self.latest: dict[Any, Sample] = {}  # as the programs counted them
        self.per_ns: dict[Any, Counts] = {}  # what is counted in a nanosecond
        self.base: dict[Any, Sample] = {}  # of `latest`, when the last window was closed
        self._windows: deque[tuple[int, dict[Any, Counts]]] = deque(maxlen=WINDOWS)
        self._extra: dict[Any, Counts] = {}
        self._lasted: dict[Any, tuple[str, int]] = {}
        self._told: dict[Any, Counts] = {}  # estimated sums do not fall
        self._keeps = False  # between `begin` and `end`: all keys are kept

    @property
    def is_needed(self) -> bool:
        """True if something is to be added to what the programs count."""
        return self._keeps or bool(self._extra)

    def begin(self, samples: Iterable[Sample]) -> None:
        """Windows begin; ``samples`` are all that has been counted."""
        self.latest = {self._key(sample): sample for sample in samples}
        self.base, self._keeps = dict(self.latest), True

    def open_window(self, gap_ns: int, paces: Mapping[int, float]) -> None:
        """The programs were attached again, so long after the last window was closed. ``paces``: see `at`."""
        self._lasted = {}
        for key, per_ns in self.per_ns.items():
            extra = self._extra.setdefault(key, {})
            _add(extra, per_ns, gap_ns, paces.get(key[0], gap_ns))
            before = self.base.get(key)
            if field := LASTS.get(getattr(before, "state", ""), ""):
                self._lasted[key] = field, gap_ns
                extra[field] = extra.get(field, 0.0) - gap_ns

    def see(self, samples: Iterable[Sample]) -> list[Sample]:
        """Samples of the programs, with estimates added for what they did not see."""
        found = []
        for sample in samples:
            key = self._key(sample)
            before = self.latest.get(key)
            if before is not None and self._restarted(before, sample):
                extra = self._extra.setdefault(key, {})
                for field, value in self._counts(before).items():
                    extra[field] = extra.get(field, 0.0) + value
            if self._keeps or key in self._extra:
                self.latest[key] = sample
            found.append(self._estimated(key, sample, 0, {}))
        return found

    def close_window(self, ns: int, alive: Callable[[Any], bool]) -> dict[Any, Counts]:
        """The programs were detached after ``ns``; returns what they counted. Only keys that are ``alive`` are kept."""
        counted: dict[Any, Counts] = {}
        for key, sample in self.latest.items():
            before = self.base.get(key)
            if before is not sample and (grown := self._growth(key, before, sample, ns)):
                counted[key] = grown
        for table in (self.latest, self._extra, self._told):
            for key in [key for key in table if not alive(key)]:
                del table[key]
        self._windows.append((ns, counted))
        self.base = dict(self.latest)
        total: dict[Any, Counts] = {}
        for _, one in self._windows:
            for key, grown in one.items():
                sums = total.setdefault(key, {})
                for field, value in grown.items():
                    sums[field] = sums.get(field, 0.0) + value
        all_ns = sum(ns for ns, _ in self._windows)
        self.per_ns = {key: {field: value / all_ns for field, value in sums.items()} for key, sums in total.items() if key in self.latest}
        return counted

    def at(self, gap_ns: int, paces: Mapping[int, float], wanted: Callable[[Any, Sample], bool]) -> list[Sample]:
        """The estimates so long after the last window was closed.

        ``paces``: tid -> ns in which it would have made its switches of this gap at the pace of the windows. Counts grow by these, times
        by ``gap_ns``.
        """
        return [self._estimated(key, sample, gap_ns, paces) for key, sample in self.base.items() if wanted(key, sample)]

    def end(self) -> None:
        """The programs stay attached."""
        self._windows.clear()
        self.per_ns, self._keeps = {}, False
        self.base, self._lasted = {}, {}
        self.latest = {key: sample for key, sample in self.latest.items() if key in self._extra}

    def forget(self, is_gone: Callable[[Any], bool]) -> None:
        """Drop these keys."""
        for table in (self.latest, self.per_ns, self.base, self._extra, self._told):
            for key in [key for key in table if is_gone(key)]:
                del table[key]

    def _counts(self, sample: Sample) -> Counts:
        counts: Counts = {name: getattr(sample, name) for name in self._plain}
        if self._has_hist:
            counts.update(getattr(sample, "hist"))  # noqa: B009 - not every kind of sample has one
        return counts

    def _restarted(self, before: Sample, sample: Sample) -> bool:
        """True if its entry was deleted, and counts from 0 again."""
        return bool("times" in self._fields and getattr(sample, "times") < getattr(before, "times"))  # noqa: B009

    def _growth(self, key: Any, before: Sample | None, sample: Sample, ns: int) -> Counts:
        grown = self._counts(sample)
        if before is not None and not self._restarted(before, sample):
            for field, value in self._counts(before).items():
                grown[field] = grown.get(field, 0.0) - value
        if key in self._lasted:
            field, lasted_ns = self._lasted[key]
            grown[field] -= lasted_ns
        return {field: min(value, ns) if _is_time(field) else value for field, value in grown.items() if value > 0}

    def _estimated(self, key: Any, sample: Sample, gap_ns: int, paces: Mapping[int, float]) -> Sample:
        extra, per_ns = self._extra.get(key), self.per_ns.get(key, {}) if gap_ns else {}
        if extra is None and not per_ns:
            return sample
        counts = self._counts(sample)
        for field, value in (extra or {}).items():
            counts[field] = counts.get(field, 0.0) + value
        _add(counts, per_ns, gap_ns, paces.get(key[0], gap_ns))
        told = self._told.get(key, {})
        whole = self._told[key] = {field: max(int(value), told.get(field, 0)) for field, value in counts.items()}
        changed: dict[str, Any] = {name: whole[name] for name in self._plain}
        if self._has_hist:
            changed["hist"] = {field: value for field, value in whole.items() if isinstance(field, int) and value}
        return msgspec.structs.replace(sample, **changed)


def _is_time(field: object) -> bool:
    return isinstance(field, str) and field.endswith("ns")


def _add(sums: Counts, per_ns: Counts, gap_ns: float, pace_ns: float) -> None:
    for field, value in per_ns.items():
        sums[field] = sums.get(field, 0.0) + value * (gap_ns if _is_time(field) else pace_ns)
