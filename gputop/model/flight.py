"""What dumps of torch's flight recorder hold: the output of `gputop trace --flight --json`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gputop.model.ranges import Bytes, Count, Pid, Ranks, Seconds

SCHEMA = 1
MOST_STOPS = 16  # of a job that are shown


class FlightRank(Struct, frozen=True):
    """A rank that was asked. ``error``: why there is no dump of it."""

    rank: Ranks | None
    pid: Pid  # 0: a file that was read
    version: str = ""  # of the dump's format
    calls: Count = 0  # in it
    error: str | None = None


class FlightStop(Struct, frozen=True):
    """A collective, or a transfer between two ranks, in which ranks stand."""

    kind: str
    """``missing``: ranks did not come; ``differs``: they came to another one; ``late``: a GPU has not begun it; ``inside``: all are in."""
    group: str
    collective: str
    number: Count  # of the collective in its group: its sequence number
    size_bytes: Bytes | None  # of the tensors that a rank brings
    shapes: list[list[int]]
    dtype: str
    place: str  # of its call in Python: ``train.py:88 in step``
    waiting: list[Ranks]  # ranks that are in it
    missing: list[Ranks]  # ranks that did not come, came to another one, or whose GPU has not begun it
    unknown: list[Ranks]  # members of the group without a dump
    instead: str  # of the first missing rank: its last call, or the one it came to instead
    waited_s: Seconds | None
    words: str  # the stop in a sentence


class Flight(Struct, frozen=True):
    """Answer of the dumps of one job."""

    words: str  # the answer in a sentence
    stops: Annotated[list[FlightStop], Meta(max_length=MOST_STOPS)]  # the one that explains others first
    ranks: list[FlightRank]


class Flights(Struct, frozen=True):
    """Output of `gputop trace --flight --json`."""

    schema: int
    jobs: list[Flight]
