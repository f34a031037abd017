"""Tool `stacks`: where processes stand, equal stacks together."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gputop.agents.answer import Answer, Asked, Row, untrusted
from gputop.agents.look import ALL, SHORT, follow, missing_of, stretch
from gputop.agents.places import Places
from gputop.model.frame import Stack
from gputop.recording.reader import Recording
from gputop.stacks.group import Group, group
from gputop.stream.judged import LONG_NS
from gputop.stream.stalled import stalled_pids

SAYS = (
    "Python stacks, equal ones grouped, and what each thread waits for. On a machine they are taken now (pids: [] for the stalled ones); "
    "in a recording they are the ones kept as its incidents began."
)
MOST_FRAMES = 12  # of a stack
MOST_GROUPS = 32  # of an answer
MOST_PIDS = 8  # of a group that are named


class StacksQuestion(Asked):
    pids: Annotated[list[int], Meta(max_length=64)] = []
    window: str = ALL
    limit: Annotated[int, Meta(ge=1, le=MOST_GROUPS)] = 8

    def wider(self) -> Row:
        """A limit that lists all groups that may be listed; empty if this is it."""
        return {"limit": MOST_GROUPS} if self.limit < MOST_GROUPS else {}


class StacksAnswer(Answer):
    groups: list[Row] = []
    taken_unix_s: float | None = None


def run(places: Places, asked: StacksQuestion) -> StacksAnswer:
    target = asked.target or places.default
    is_now = places.is_now(asked.target)
    with places.recording(asked.target) as recording:
        start_ns, end_ns = stretch(recording, ALL if is_now else asked.window)
        following = follow(recording, SHORT if is_now or end_ns - start_ns > LONG_NS else asked.window)
        roles, missing = dict(following.engine.roles), missing_of(recording, following.board)
        if is_now:
            pids = asked.pids or stalled_pids(roles, following.engine.states)
            stacks = places.stacks(asked.target, pids) if pids else []
        else:
            stacks = _kept(recording, start_ns, end_ns, asked.pids)
        at_s = round(recording.unix_ns_of(max(one.t_ns for one in stacks)) / 1e9, 1) if stacks else None
    if not stacks:
        missing.append("stacks: no process stalls; name pids" if is_now else "stacks: none were kept in this window")
    groups = group(stacks, roles)
    return StacksAnswer(
        target=target, groups=[_row(one) for one in groups[: asked.limit]], taken_unix_s=at_s, truncated=len(groups) > asked.limit,
        not_measured_untrusted=[untrusted(line) for line in missing],
    )  # fmt: skip


def _kept(recording: Recording, start_ns: int, end_ns: int, pids: list[int]) -> list[Stack]:
    """The last of each thread."""
    found = [one for frame in recording.frames(start_ns, end_ns) for one in frame.stacks]
    return list({(one.pid, one.tid): one for one in found if not pids or one.pid in pids}.values())


def _row(one: Group) -> Row:
    return {
        "threads": len(one.members), "pids": sorted({member.pid for member in one.members})[:MOST_PIDS],
        "title_untrusted": untrusted(one.title), "error_untrusted": untrusted(one.error),
        "waits_untrusted": [untrusted(f"{count} x {wait}") for wait, count in one.waits[:3] if wait],
        "frames_untrusted": [
            untrusted(f"{frame.name} {frame.place}{f': {frame.source.strip()}' if frame.source else ''}", 120)
            for frame in one.frames[:MOST_FRAMES]
        ],
        "kernel_untrusted": [untrusted(name, 60) for name in one.kernel[:4]],
    }  # fmt: skip
