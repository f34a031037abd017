"""What an inference server did over a stretch, by its own counters and histograms: the pace of a job that serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from gputop.diagnosis.facts.serving import ServerFacts
from gputop.model.board import Board
from gputop.model.serving import Serving, quantile_us
from gputop.system.text import figure

TOKENS, REQUESTS, FIRST_TOKEN = "tokens", "requests", "first_token"
"""Metrics of a server: tokens generated a second, requests ended a second, and the mean s to the first token."""
UNITS = {TOKENS: "tokens/s", REQUESTS: "requests/s", FIRST_TOKEN: "s to the first token"}
_COUNTED = ("generated_tokens", "finished", "first_token_us")  # counters of a page that a stretch has


class ServedStretch(Struct, frozen=True):
    """Growth between two pages of a server, its models and engines together. None: its pages have no such metric."""

    seconds: float = 0.0
    generated_tokens: int | None = None
    finished: int | None = None  # requests
    first_token: Mapping[int, int] = {}  # as in `Serving`: requests that got their first token, by upper bound in us
    first_token_us: int | None = None  # all of these times together

    def value(self, metric: str) -> float | None:
        """The stretch by one of the metrics above, in its unit."""
        if metric == FIRST_TOKEN:
            count = sum(self.first_token.values())
            return self.first_token_us / count / 1e6 if count and self.first_token_us is not None else None
        made = self.generated_tokens if metric == TOKENS else self.finished
        return None if made is None or self.seconds <= 0.0 else made / self.seconds

    def first_token_s(self, share: float) -> float | None:
        """The s below which ``share`` of the times to the first token lies; None if no request got one."""
        found = quantile_us({}, dict(self.first_token), share)
        return None if found is None else found / 1e6


def pages_of(board: Board, servers: Mapping[int, ServerFacts], pid: int) -> tuple[Serving, ...]:
    """The newest pages of a trainer's server, as far as they have values. ``servers``: trainer -> its server, by the diagnosis."""
    server = servers.get(pid)
    return () if server is None else tuple(one for one in board.servings.values() if one.pid == server.top and not one.problem)


def between(older: Iterable[Serving], newer: Iterable[Serving]) -> ServedStretch | None:
    """Growth from the older pages to the newer ones; None if no model has two, or the server was started again."""
    before = {(one.engine, one.model): one for one in older}
    ends = [(first, last) for last in newer if (first := before.get((last.engine, last.model))) is not None and last.t_ns > first.t_ns]
    if not ends:
        return None
    grown = {name: _growth(ends, name) for name in _COUNTED}
    if any(count is not None and count < 0 for count in grown.values()):
        return None
    first_token = Counter[int]()
    for first, last in ends:
        first_token.update({bound: max(0, count - first.first_token.get(bound, 0)) for bound, count in last.first_token.items()})
    seconds = max(last.t_ns - first.t_ns for first, last in ends) / 1e9
    return ServedStretch(seconds, first_token=first_token, **grown)


def _growth(ends: Sequence[tuple[Serving, Serving]], name: str) -> int | None:
    """Growth of a counter, of all models that have it."""
    pairs = [(getattr(first, name), getattr(last, name)) for first, last in ends]
    return _sum(None if before is None or after is None else after - before for before, after in pairs)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def together(parts: Iterable[ServedStretch | None]) -> ServedStretch | None:
    """Several stretches as one; None without any."""
    known = [one for one in parts if one is not None]
    if not known:
        return None
    first_token = Counter[int]()
    for one in known:
        first_token.update(one.first_token)
    counts = {name: _sum(getattr(one, name) for one in known) for name in _COUNTED}
    return ServedStretch(sum(one.seconds for one in known), first_token=first_token, **counts)


def changes(before: ServedStretch | None, after: ServedStretch | None, metric: str = "") -> list[str]:
    """``312 → 640 tokens/s``, ``first token 1.4 → 0.21 s (p99 2.3 → 0.5 s)``, as far as both have them. ``metric``: not of this one."""
    if before is None or after is None:
        return []
    parts = []
    pace = next((one for one in (TOKENS, REQUESTS) if before.value(one) is not None and after.value(one) is not None), "")
    if pace and pace != metric:
        parts.append(f"{_figure(before.value(pace))} → {_figure(after.value(pace))} {UNITS[pace]}")
    middle, late = ([stretch.first_token_s(share) for stretch in (before, after)] for share in (0.5, 0.99))
    if None not in middle:
        parts.append(f"first token {_figure(middle[0])} → {_figure(middle[1])} s (p99 {_figure(late[0])} → {_figure(late[1])} s)")
    return parts


def _figure(value: float | None) -> str:
    return "?" if value is None else figure(value, 2 if value < 10.0 else 3)
