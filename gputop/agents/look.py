"""A look at a stretch of a recording: the explanation, and the state of things at its end."""

from __future__ import annotations

import re
from collections import deque
from time import time

from msgspec import Struct

from gputop.agents.places import Places
from gputop.findings.explanation import Explanation
from gputop.findings.verdict import CAUSES, SYMPTOMS
from gputop.fleet.jobs import Job, Sight, find_jobs
from gputop.fleet.summary import Summary, summarize
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS
from gputop.recording.reader import Recording
from gputop.stream.explained import explain
from gputop.stream.following import Following
from gputop.stream.judged import judged
from gputop.stream.moment import bounds, moment
from gputop.system.errors import UserError
from gputop.system.text import clean

ALL, NOW, SHORT = "all", "60s", "10s"  # windows: all of it; the last minute; enough to see who trains
_LAST = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([smh]?)", re.ASCII)
_NS = {"": SECOND_NS, "s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS}
_BETWEEN = ".."


def stretch(recording: Recording, window: str) -> tuple[int, int]:
    """(start_ns, end_ns) of ``all``, ``90s`` or ``5m`` (the last), or ``FROM..UNTIL`` by `gputop.stream.moment`. UserError."""
    first, end = recording.start_ns, recording.end_ns + 1
    window = window.strip()
    if window in ("", ALL):
        return first, end
    if match := _LAST.fullmatch(window):
        return max(first, end - round(float(match[1]) * _NS[match[2]])), end
    begin, between, until = window.partition(_BETWEEN)
    if not between:
        raise UserError(f"{clean(window, 80)!r} is no window: write all, 90s, 5m, or FROM..UNTIL, as in 14:03..14:05 or 10%..50%")
    start_ns = max(first, moment(begin, recording)) if begin else first
    end_ns = min(end, moment(until, recording, start_ns) + 1) if until else end
    if start_ns >= end_ns:
        raise UserError(f"nothing was recorded in {clean(window, 80)!r}: this recording goes from {bounds(recording)}")
    return start_ns, end_ns


class Look(Struct):
    """A stretch of a recording: its explanation, and the board of its last moment."""

    start_unix_s: float
    seconds: float
    explanation: Explanation
    board: Board  # of its last moment
    missing: list[str]  # ``source: reason`` of what was not measured


def look(places: Places, target: str, window: str) -> Look:
    """Explain the stretch of a target as `gputop explain` does: by what the recorder found, where that is known by today's rules."""
    with places.recording(target) as recording:
        start_ns, end_ns = stretch(recording, window)
        found = explain(recording, start_ns, end_ns)
        board = found.board or recording.board_at(recording.end_ns)
        seconds = (min(end_ns, recording.end_ns) - start_ns) / SECOND_NS
        start_unix_s = round(recording.unix_ns_of(start_ns) / 1e9, 1)
        return Look(start_unix_s, round(seconds, 1), found.explanation, board, missing_of(recording, board))


def follow(recording: Recording, window: str = SHORT) -> Following:
    """Board and engine as they stand at the end of the stretch."""
    following = Following()
    deque(judged(following, recording, *stretch(recording, window)), maxlen=0)
    return following


def summary_of(following: Following) -> Summary:
    """The summary that a node with this board and engine would send."""
    return summarize(following.board, following.engine)


def jobs_of(host: str, summary: Summary) -> list[Job]:
    """The jobs of one machine."""
    return find_jobs([Sight(host, summary)])


def missing_of(recording: Recording, board: Board) -> list[str]:
    """Lines about what was not measured, and why: sources that read nothing or not all, gaps, damage."""
    lines = [f"{one.name} {one.state}: {one.reason}" for one in board.sources.values() if one.state != "ok"]
    gaps = sum(bool(mark.gap_reason) for mark in recording.marks)
    lines += [f"{gaps} gaps in the recording"] * (gaps > 0)
    return [*lines, *([recording.problem] if recording.problem else [])]


def cause_of(word: str) -> str | None:
    """A known cause; a file may hold any text."""
    return word if word in CAUSES else None


def symptom_of(word: str | None) -> str | None:
    """A symptom that is one."""
    return word if word in SYMPTOMS else None


def age_s(unix_s: float) -> float:
    """Seconds since then."""
    return round(max(0.0, time() - unix_s), 1)
