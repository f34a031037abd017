"""An experiment as a picture: a bar without and one with the change, scaled to each other, the pairs as they come, and the gain."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from gputop.prove import running, served
from gputop.prove.change import NAMED, Case, Plan
from gputop.prove.statistics import LEAST_PAIRS
from gputop.prove.trial import GPU_WORK, STEPS, UNITS, Outcome
from gputop.system.text import cell_width, counted, cut, figure
from gputop.tui.draw import Line, Span

ARMS = ("as it is", "without")  # off, on
LABEL, LEAST_BAR = 12, 6  # columns of the mark and the name before a bar; of a bar, below which there is none
PER_S_FROM = 60.0  # steps a minute of the slower arm from which steps are counted by the second, as elsewhere on the screen
WORDS = {"proved": ("✓ PROVED", "good"), "disproved": ("✗ DISPROVED", "warn"), "undecided": ("? UNDECIDED", "warn")}
_BAR = "▇"  # seven eighths high: two bars do not fuse


def title(name: str, shown: Outcome, looks: Sequence[int], seconds: float, width: int) -> str:
    """The box's name, and at the right which pair is measured, ``pair 3 of 3–8, 14 s``, or how many there were."""
    if shown.result:
        right = f"{counted(len(shown.pairs), 'pair')}, {shown.seconds:.0f} s"
    else:
        most = looks[-1]
        right = f"pair {min(most, len(shown.pairs) + 1)} of {f'{looks[0]}–{most}' if most > looks[0] else most}, {seconds:.0f} s"
    return f"{name}{' ' * max(2, width - cell_width(name) - cell_width(right))}{right}"


def picture(case: Case, planned: Plan, shown: Outcome, on: bool | None, width: int) -> list[Line]:
    """What is tried, its bars, its pairs and its gain. ``on``: the arm that is being measured; None: none is any more."""
    about = f"  for {case.cause} at {case.trainer}"
    is_long = cell_width(planned.says + about) > width
    head: list[Line] = [[(planned.says, "title")], [(about, "dim")]] if is_long else [[(planned.says, "title"), (about, "dim")]]
    return [*head, [], *bars(shown, on, width), *_pairs(shown), *_served(shown), [], *_verdict(shown, width), *_changed(planned, width)]


def bars(shown: Outcome, on: bool | None, width: int) -> list[Line]:
    """A bar for each side, as long as its pace; ``▶`` marks the one that is being measured."""
    values, unit = _paces(shown)
    words = [running.UNMEASURED if value is None else f"{figure(value, 3)} {unit}" for value in values]
    told = max(map(cell_width, words))
    room, most = width - LABEL - told - 2, max((value for value in values if value is not None), default=0.0)
    lines: list[Line] = []
    for arm, value, word, is_on in zip(ARMS, values, words, (False, True), strict=True):
        cells = 0 if not value or room < LEAST_BAR else max(1, round(room * value / most))
        bar = f"{_BAR * cells:<{room}}  " if room >= LEAST_BAR else ""
        mark: Span = ("▶ ", "accent") if on is is_on else ("  ", "")
        lines.append([mark, (f"{arm:<{LABEL - 2}}", "title"), (bar, _colour(shown, is_on)), (f"{word:>{told}}", "")])
    return lines


def _paces(shown: Outcome) -> tuple[list[float | None], str]:
    """Both sides, and their unit: steps if they were counted, tokens of a server, else the GPUs' work."""
    values, unit = [shown.mean(on) for on in (False, True)], UNITS.get(shown.metric, UNITS[GPU_WORK])
    known = [value for value in values if value is not None]
    if shown.metric == STEPS and len(known) == len(values):
        is_fast = min((value for value in known if value), default=0.0) >= PER_S_FROM
        return [value / 60.0 if is_fast else value for value in known], "steps/s" if is_fast else unit
    return values, unit


def _colour(shown: Outcome, is_on: bool) -> str:
    return "good" if is_on and shown.result in ("", "proved") else "lane" if is_on else "warn"


def _pairs(shown: Outcome) -> list[Line]:
    """The gain of each pair, in their order."""
    gains = [running.pair_gain(pair, shown) for pair in shown.pairs]
    return [[("  ", ""), (f"{'pairs':<{LABEL - 2}}", "title"), ("  ".join(gains) if gains else "none yet", "" if gains else "dim")]]


def _served(shown: Outcome) -> list[Line]:
    """A line with a server's other metrics, without and with the change."""
    changes = served.changes(shown.served(on=False), shown.served(on=True), shown.metric)
    return [[("  ", ""), (f"{'server':<{LABEL - 2}}", "title"), (", ".join(changes), "")]] if changes else []


def _verdict(shown: Outcome, width: int) -> list[Line]:
    """The gain with its bounds, and the result at the right; why it is undecided."""
    counts = f", faster in {shown.faster_pairs} of {len(shown.pairs)} pairs"
    if not shown.result:
        return [[(f"so far {gain}", "title")]] if (gain := _so_far(shown)) else []
    word, colour = WORDS[shown.result]
    if shown.estimate is None or not shown.pairs:
        left = ""
    else:
        left = running.gain(shown) + (counts if shown.result != "disproved" else ": slower" if shown.estimate.high < 0.0 else ": no change")
    space = width - cell_width(left) - cell_width(word)
    first: list[Line] = [[(left, "title"), (" " * space, ""), (word, colour)]] if space > 0 else [[(left, "title")], [(word, colour)]]
    return [*first, *([[(shown.reason, "warn")]] if shown.reason else [])]


def _so_far(shown: Outcome) -> str:
    """The gain up to now; its bounds from as many pairs on as are looked at."""
    if shown.estimate is not None and len(shown.pairs) >= LEAST_PAIRS:
        return running.gain(shown)
    logs = [change for pair in shown.pairs if (change := pair.ratio_log(shown.metric, shown.clock)) is not None]
    if not logs or any(running.pair_gain(pair, shown) == running.STANDSTILL for pair in shown.pairs):
        return ""
    return f"{figure(exp(sum(logs) / len(logs)), 2)}×"


def _changed(planned: Plan, width: int) -> list[Line]:
    """Processes that are changed, with their users, in one line."""
    found = planned.reached
    names = [f"{one.target.name} ({one.target.pid}, {one.user})" for one in found[:NAMED]]
    more = [f"{len(found) - NAMED} more"] if len(found) > NAMED else []
    return [[(cut(f"changed: {' · '.join([*names, *more])}", width), "dim")]] if found else []
