"""The answer of torch's flight recorder, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from gputop.findings.message import head, labelled
from gputop.model.flight import MOST_STOPS, Flight
from gputop.system.colour import Line


def lines(found: Flight, width: int) -> Iterator[Line]:
    """The answer in the shape of a finding."""
    yield head("flight recorder", "high" if found.stops else "info", found.words if not found.stops else "")
    for stop in found.stops:
        yield from labelled("stop", [(stop.words, "title")], width)
        facts = [stop.place and f"called at {stop.place}", f"waits for {stop.waited_s:,.0f} s" if stop.waited_s is not None else ""]
        shapes = " ".join(str(one) for one in stop.shapes[:3])
        facts.append(f"{stop.dtype} {shapes}".strip() if stop.dtype else "")
        yield from labelled("", [(text, "") for text in facts if text], width)
    silent = [one for one in found.ranks if one.error is not None]
    for one in silent[:MOST_STOPS]:
        who = f"rank {one.rank}" if one.rank is not None else "process"
        yield from labelled("note", [(f"{who}{f' ({one.pid})' if one.pid else ''}: {one.error}", "warn")], width)
