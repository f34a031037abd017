"""Tool `series`: readings over time, as minimum, mean and maximum of a few points."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gputop.agents.answer import Answer, Asked, Row, untrusted
from gputop.agents.look import NOW, missing_of, stretch
from gputop.agents.places import Places
from gputop.model.fields import FIELDS, OF_SERVERS
from gputop.stream.history import History, SeriesKey
from gputop.stream.judged import tier_for
from gputop.stream.observers import unjudged
from gputop.system.errors import UserError
from gputop.system.text import clean

SAYS = (
    "Readings over time, [min, mean, max] of each point, null where none was read. Fields: "
    f"{' '.join(FIELDS)}. subject: a GPU's index, a server's pid, 0 of the host."
)
MOST_SUBJECTS = 8  # of a field: GPUs
FINE_NS = 16_666_667  # ns between ticks of a history that holds its most, 36,000 ticks


class SeriesQuestion(Asked):
    fields: Annotated[tuple[str, ...], Meta(max_length=6)] = ("gpu.util_pct", "cpu.busy_pct", "runq.pct")
    window: str = NOW
    points: Annotated[int, Meta(ge=1, le=120)] = 30


class SeriesAnswer(Answer):
    from_unix_s: float | None = None
    step_s: float | None = None
    series: list[Row] = []


def run(places: Places, asked: SeriesQuestion) -> SeriesAnswer:
    unknown = next((name for name in asked.fields if name not in FIELDS), None)
    if unknown is not None:
        raise UserError(f"there is no field {clean(unknown, 60)!r}: there are {', '.join(FIELDS)}", code=2)
    target = asked.target or places.default
    with places.recording(asked.target) as recording:
        start_ns, end_ns = stretch(recording, asked.window)
        tier = tier_for(start_ns, min(end_ns, recording.end_ns), False)
        history, board, observers = History(FINE_NS), recording.board_at(start_ns, tier), unjudged()
        for frame in recording.frames(board.t_ns + 1 if board.seq >= 0 else start_ns, end_ns, tier=tier):
            history.tick(frame.t_ns)
            for observe in observers:
                observe(board, frame, history)
            board.fold(frame)
        step_ns = max(1, (end_ns - start_ns) // asked.points)
        keys = [key for name in asked.fields for key in sorted(history.series) if key[0] == name and _is_listed(key)]
        absent = [f"{name}: not read in this window" for name in asked.fields if not any(key[0] == name for key in keys)]
        return SeriesAnswer(
            target=target, from_unix_s=round(recording.unix_ns_of(start_ns) / 1e9, 1), step_s=round(step_ns / 1e9, 3),
            truncated=any(not _is_listed(key) for key in history.series if key[0] in asked.fields) or history.trimmed > 0,
            not_measured_untrusted=[untrusted(line) for line in [*absent, *missing_of(recording, board)]],
            series=[
                {"field": name, "subject": subject, "unit": FIELDS[name].unit,
                 "points": [_point(history, (name, subject), start_ns + i * step_ns, step_ns) for i in range(asked.points)]}
                for name, subject in keys
            ],
        )  # fmt: skip


def _is_listed(key: SeriesKey) -> bool:
    """True if an answer has room for the subject: of all servers, few are asked anyway."""
    return key[0] in OF_SERVERS or key[1] < MOST_SUBJECTS


def _point(history: History, key: tuple[str, int], start_ns: int, step_ns: int) -> list[float] | None:
    values = [value for _, value in history.values(key, start_ns, start_ns + step_ns)]
    return [round(one, 1) for one in (min(values), sum(values) / len(values), max(values))] if values else None
