"""Requests of an inference server: its own gauges and counters, read once a second from its page of metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import msgspec

from gputop.model.ranges import Count, Percent

BEYOND_US = (1 << 31) - 1  # upper bound in us of a histogram's last bucket: +Inf, and any bound above it
PAGE_S = 0.5  # s that a page may take
NOT_LISTENING = "nothing of it listens yet"  # `Serving.problem` of a server that starts
NOT_READY = "it answers 503: it is not ready yet"  # likewise, where it listens before it has its weights (RFC 9110, 15.6.4)
STARTING = (NOT_LISTENING, NOT_READY)
TOO_SLOW = f"its page took longer than {PAGE_S:g} s"  # `Serving.problem` of a server that has no time to answer
SERVING_KEY = ("pid", "address", "engine", "model")
HISTOGRAMS = ("first_token", "per_token", "queued", "whole")
GAUGES = ("running", "waiting", "kv_used_pct")
COUNTERS = ("preemptions", "prompt_tokens", "generated_tokens", "finished", "steps", "step_tokens")
SUMS = tuple(f"{name}_us" for name in HISTOGRAMS)


class Serving(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One model of one engine, as its server's page at ``t_ns`` has it.

    A page has all models of a server: a model that a newer page lacks is no longer served. Histograms are upper bound in us -> number of
    requests (of ``per_token``: of tokens) from the bound before it up to this one.
    """

    pid: int  # process that started the engine's others; 0: the user gave its address
    address: str  # ``127.0.0.1:8000``; empty while nothing listens
    engine: str = ""  # the server's own number of one of its engines, where it has several
    model: str = ""
    family: str = ""  # name of an engine in `gputop.model.engines`
    t_ns: int = 0  # when the page came (CLOCK_MONOTONIC)
    problem: str = ""  # why there are no values
    running: Count | None = None  # requests being worked on
    waiting: Count | None = None  # requests in the queue
    kv_used_pct: Percent | None = None  # of the memory for keys and values
    preemptions: Count | None = None  # requests that lost their memory and begin again
    prompt_tokens: Count | None = None
    generated_tokens: Count | None = None
    finished: Count | None = None  # requests
    steps: Count | None = None  # forward passes
    step_tokens: Count | None = None  # tokens (of Triton: requests) in all of these together
    first_token_us: Count | None = None  # of each histogram below: all of its times together
    per_token_us: Count | None = None
    queued_us: Count | None = None
    whole_us: Count | None = None
    first_token: dict[int, int] = {}  # time to the first token
    per_token: dict[int, int] = {}  # time from one token to the next
    queued: dict[int, int] = {}  # time in the queue
    whole: dict[int, int] = {}  # time of the whole request


def newest(servings: Iterable[Serving]) -> dict[tuple[int, str, str, str], Serving]:
    """Key -> the newest reading of each model, without models and addresses that a server's newest page lacks. In order of time."""
    found: dict[tuple[int, str, str, str], Serving] = {}
    latest: dict[int, dict[str, int]] = {}
    for one in servings:
        found[one.pid, one.address, one.engine, one.model] = one
        latest.setdefault(one.pid, {})[one.address if not one.pid else ""] = one.t_ns
    return {key: one for key, one in found.items() if one.t_ns >= latest[one.pid][one.address if not one.pid else ""]}


def subject_of(page: Serving | ServingNow) -> int:
    """The subject of a server's series: its topmost process; where the user gave the address, a number below 0 that stands for it."""
    return page.pid or -(crc32(page.address.encode()) & 0x7FFFFFFF) - 1


def quantile_us(older: dict[int, int], newer: dict[int, int], share: float) -> float | None:
    """The time in us below which ``share`` of what came between two readings of a histogram lies; None if nothing came.

    It is linear within a bucket, as in Prometheus. What lies beyond the last bound counts as that bound.
    """
    grown = {bound: count for bound in sorted(newer) if (count := newer[bound] - older.get(bound, 0)) > 0}
    total, below = sum(grown.values()), 0
    bounds = sorted({0, *newer})
    for bound, count in grown.items():
        if below + count >= share * total:
            lower = bounds[bounds.index(bound) - 1]
            return float(lower) if bound == BEYOND_US else lower + (bound - lower) * (share * total - below) / count
        below += count
    return None


class ServingNow(msgspec.Struct, frozen=True, gc=False):
    """One model of one engine now: its newest page, with rates and latencies since a page of some seconds before. Null is what was not
    measured; ``missing`` has the reason. A latency's time is that of requests (``per_token``: of tokens) that ended in these seconds."""

    pid: int
    address: str
    engine: str
    model: str
    family: str
    t_ns: int
    running: int | None = None
    waiting: int | None = None
    kv_used_pct: float | None = None
    prompt_tokens_per_s: float | None = None
    generated_tokens_per_s: float | None = None
    finished_per_s: float | None = None
    preemptions_per_s: float | None = None
    steps_per_s: float | None = None
    tokens_per_step: float | None = None
    first_token_p50_s: float | None = None
    first_token_p99_s: float | None = None
    per_token_p50_s: float | None = None
    per_token_p99_s: float | None = None
    queued_p50_s: float | None = None
    queued_p99_s: float | None = None
    whole_p50_s: float | None = None
    whole_p99_s: float | None = None
    missing: dict[str, str] = {}


def total_of(pages: Iterable[ServingNow], name: str) -> float | None:
    """The sum of a field over a server's models and engines; None if no page has it."""
    known = [value for one in pages if (value := getattr(one, name)) is not None]
    return sum(known) if known else None


def worst_of(pages: Iterable[ServingNow], name: str) -> float | None:
    """The most of a field over a server's models and engines; None if no page has it."""
    return max((value for one in pages if (value := getattr(one, name)) is not None), default=None)


MOST_DIGITS = 4  # significant digits of what `whole` gives, as of `gputop.system.text.figure`


def whole(value: float) -> int:
    """The number that every surface prints for a rate, a share or a time in ms of a server: rounded here, so that nobody rounds again."""
    return int(round(value, min(0, MOST_DIGITS - len(str(int(abs(value)))))))


_RATES = {f"{name}_per_s": name for name in ("prompt_tokens", "generated_tokens", "finished", "preemptions", "steps")}
_QUANTILES = {f"{name}_p{share}_s": (name, share / 100) for name in HISTOGRAMS for share in (50, 99)}
_MADE_OF = _RATES | {made: name for made, (name, _) in _QUANTILES.items()} | {"tokens_per_step": "step_tokens"}
"""Field of `ServingNow` -> the field of `Serving` that it is made of."""
ONE_PAGE = "not yet: it takes two pages"


def serving_now(older: Serving | None, newer: Serving) -> ServingNow:
    """The newest page of a model, with what came since an older one; None for a server that was read once."""
    own: dict[str, Any] = {name: getattr(newer, name) for name in ("pid", "address", "engine", "model", "family", "t_ns", *GAUGES)}
    found: dict[str, Any] = {}
    if older is not None and newer.t_ns > older.t_ns and not _has_restarted(older, newer):
        found = _since(older, newer)
    missing = {}
    for name in (*GAUGES, *_MADE_OF):
        if own.get(name) is None and found.get(name) is None:
            missing[name] = _why_missing(newer, _MADE_OF.get(name, name), found, name)
    return ServingNow(**own, **found, missing=missing)


def _since(older: Serving, newer: Serving) -> dict[str, float | None]:
    """Rates and latencies between two pages."""
    seconds = (newer.t_ns - older.t_ns) / 1e9
    found: dict[str, float | None] = {}
    grown = {name: _growth(older, newer, name) for name in COUNTERS}
    for made, name in _RATES.items():
        count = grown[name]
        found[made] = None if count is None else round(count / seconds, 3)
    steps, tokens = grown["steps"], grown["step_tokens"]
    found["tokens_per_step"] = round(tokens / steps, 3) if steps and tokens is not None else None
    for made, (name, share) in _QUANTILES.items():
        time_us = quantile_us(getattr(older, name), getattr(newer, name), share)
        found[made] = None if time_us is None else round(time_us / 1e6, 6)
    return found


def _growth(older: Serving, newer: Serving, name: str) -> int | None:
    before, after = getattr(older, name), getattr(newer, name)
    return None if before is None or after is None else after - before


def _why_missing(page: Serving, source: str, found: dict[str, float | None], name: str) -> str:
    """Why a field of `ServingNow` is null, which is made of ``source``."""
    if page.problem:
        return page.problem
    if not (getattr(page, source) if source in HISTOGRAMS else getattr(page, source) is not None):
        return "its page has no such metric"
    return "none in the last seconds" if name in found else ONE_PAGE


def _has_restarted(older: Serving, newer: Serving) -> bool:
    """True if a counter fell: the server was started again."""
    return any((grown := _growth(older, newer, name)) is not None and grown < 0 for name in COUNTERS)


SPAN_NS = 5_000_000_000  # ns over which rates and latencies of now are taken; a choice


class ServingTracks:
    """The pages of the last seconds, of each model of each engine."""

    def __init__(self) -> None:
        self._pages: dict[tuple[int, str, str, str], list[Serving]] = {}
        self._now: list[ServingNow] | None = []  # of these pages; None: not made yet

    def push(self, servings: dict[tuple[int, str, str, str], Serving]) -> None:
        """Take what a board has."""
        if not servings and not self._pages:
            return
        if servings.keys() == self._pages.keys() and all(page.t_ns <= self._pages[key][-1].t_ns for key, page in servings.items()):
            return
        pages: dict[tuple[int, str, str, str], list[Serving]] = {}
        for key, page in servings.items():
            known = self._pages.get(key, [])
            if not known or page.t_ns > known[-1].t_ns:
                known = [*known, page]
            kept = [one for one in known if one.t_ns >= page.t_ns - SPAN_NS]
            pages[key] = kept if len(kept) > 1 else known[-2:]
        self._pages, self._now = pages, None

    def now(self) -> list[ServingNow]:
        """Each model of each engine, in order of their addresses."""
        if self._now is None:
            self._now = [serving_now(pages[0] if len(pages) > 1 else None, pages[-1]) for _, pages in sorted(self._pages.items())]
        return self._now
