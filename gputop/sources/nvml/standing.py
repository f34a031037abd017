"""What stands of one GPU: folds the lanes' reports into samples, and restates them all for a key frame."""

from __future__ import annotations

from msgspec.structs import replace

from gputop.model.frame import SECOND_NS, SILENT, Gpu, compute_pids, forget_parts
from gputop.sources.nvml.gpu import Tier
from gputop.sources.nvml.reading import HANG_NS, Report


class Standing:
    """The latest report that holds each field of GPU ``index``, and the reason for each field that has none."""

    __slots__ = ("_held_by", "_index", "_latest", "_missing", "_told", "pids")

    def __init__(self, index: int) -> None:
        self._index = index
        self._latest: dict[str, Report] = {}
        self._missing: dict[str, str] = {}
        self._told: list[Report] = []
        self.pids: frozenset[int] = frozenset()
        """Who computes on it, as last listed."""
        self._held_by: list[int] = []

    def begin(self) -> None:
        """A new frame begins: nothing has been told in it."""
        self._told.clear()

    def take(self, report: Report) -> Gpu:
        """The sample of a report: its values, and the reasons that are new."""
        values = report.values
        for field in self._missing.keys() & values.keys() if self._missing else ():
            del self._missing[field]
        listed = values.get("procs")
        if listed is not None:
            forget_parts(self._missing)
        news = {field: reason for field, reason in report.missing.items() if field not in values and self._missing.get(field) != reason}
        for field in news:
            self._latest.pop(field, None)
        self._missing.update(news)
        self._latest.update(dict.fromkeys(values, report))
        self._told.append(report)
        if isinstance(listed, list):
            self.pids = compute_pids(listed)
        return self._holding(Gpu(self._index, report.t_ns, **values, missing=news))  # type: ignore[arg-type]

    def silence(self, tier: Tier, now_ns: int) -> Gpu | None:
        """A sample that says for how long a hanging lane's fields have had no answer; None where there is nothing new."""
        ns = tier.silent_ns(now_ns)
        if not ns:
            return None
        reason = SILENT + (f"{ns // SECOND_NS} s" if ns >= HANG_NS else f"{ns / SECOND_NS:.1f} s")
        news = {field: reason for field in tier.fields() if self._missing.get(field, SILENT).startswith(SILENT)}
        if ns < HANG_NS or not tier.readings:  # what has a value nevertheless was read just now, or by the other lane
            news = {field: reason for field in news if field not in self._latest}
        if all(self._missing.get(field) == reason for field in news):
            return None
        for field in news:
            self._latest.pop(field, None)
        self._missing.update(news)
        return self._holding(Gpu(self._index, now_ns, missing=news))

    def _holding(self, sample: Gpu) -> Gpu:
        """The sample; from when the list of processes cannot be read until it can be, it says who was in it."""
        if sample.procs is None and "procs" not in sample.missing:
            return sample
        held_by = sorted(self.pids) if sample.procs is None else []
        if held_by == self._held_by:
            return sample
        self._held_by = held_by
        return replace(sample, held_by=held_by)

    def restate(self, now_ns: int) -> list[Gpu]:
        """All that stands and was not told in this frame: a sample per moment it was read, then the reasons."""
        fields: dict[int, list[str]] = {}
        reports: dict[int, Report] = {}
        for field, report in self._latest.items():
            if report not in self._told:
                fields.setdefault(id(report), []).append(field)
                reports[id(report)] = report
        samples = [
            Gpu(self._index, report.t_ns, **{field: report.values[field] for field in fields[key]})  # type: ignore[arg-type]
            for key, report in reports.items()
        ]
        return [*samples, Gpu(self._index, now_ns, missing=dict(self._missing), held_by=self._held_by or None)]
