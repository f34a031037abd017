"""All kinds of inputs, and inputs of all of them."""

from __future__ import annotations

from tests.fuzzing import agents, fleet, flights, links, lists, servers, small, traces, web
from tests.fuzzing.kind import Kind, numbered
from tests.recording import fuzz
from tests.recording.fuzz import Input

KINDS: tuple[Kind, ...] = (
    *fleet.KINDS, *traces.KINDS, *flights.KINDS, *web.KINDS, *agents.KINDS, *lists.KINDS, *links.KINDS, *servers.KINDS, *small.KINDS,
)  # fmt: skip
RECORDINGS = "recordings"
RECORDINGS_SHARE = 0.4  # of all inputs of `make fuzz`: the widest reader, and the one with the most code behind it


def prepare() -> None:
    """Make and import what all children share."""
    fuzz.prepare()
    fleet.seeds(), fleet.good(), traces.seeds()


def inputs(kind: Kind, count: int, first: int = 0) -> list[Input]:
    """So many of a kind, from a number on."""
    return [numbered(kind, number) for number in range(first, first + count)]


def counts(total: int) -> dict[Kind, int]:
    """How many inputs of each kind make ``total``."""
    whole = sum(kind.share for kind in KINDS)
    return {kind: max(1, round(total * kind.share / whole)) for kind in KINDS}
