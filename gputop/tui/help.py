"""`?`: keys, states, columns and lanes, from the registries that the screen uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.binding import Binding

from gputop.model.fields import FIELDS
from gputop.session.session import STATE_WORDS
from gputop.tui.bindings import key_name, keys_of
from gputop.tui.box import Box
from gputop.tui.context import Context
from gputop.tui.draw import Line
from gputop.tui.draw.table import GLYPHS, STARVING_GLYPH

STATES = {
    "running": "on a CPU", "runnable": "ready to run, has no CPU", "disk": "waits for block I/O",
    "memory": "waits for memory: reclaim, swap", "throttled": "its cgroup's CPU quota is used up",
    "blocked": "waits for a lock, a pipe or the network", "ahead": "idle, its queue is full: healthy",
    "stopped": "stopped by a signal", "computing": "the trainer works", "waiting-data": "the trainer waits for its loader",
    "waiting-gpu": "the trainer waits for the GPU", "transfer": "copies to or from the GPU", "sleeping": "sleeps", "dead": "has ended",
}  # fmt: skip
COLUMNS = {
    "STATE": "~ is inferred: what it waits for cannot be read (another user's process, say)",
    "power": "~ is the driver's average over about a second",
    "RUNQ%": "share of time that the main thread was ready to run and had no CPU",
    "SW/s INV/s": "context switches of all threads, and the involuntary ones; besides trainers and workers only with eBPF",
}
STARVING_HELP = "the trainer waits for data and this worker cannot deliver"
_HELD = "  a dimmed cell repeats the last reading: the driver has no newer one"


class HelpScreen(Box):
    """Every key that works on the dashboard, and what the signs mean."""

    TITLE = "gputop: keys and signs   (↑↓ scroll, Esc closes)"
    REFRESH_S = 0.0

    BINDINGS = [Binding("question_mark", "dismiss", "close", show=False)]

    def __init__(self, context: Context, keys: Sequence[Binding]) -> None:
        super().__init__(context)
        self._keys = keys

    def lines(self) -> Sequence[Line]:
        """Keys by group, then states, columns, lanes."""
        return [*_keys(self._keys, self.context.look.keys), *_states(), *_columns(), *_lanes()]


def _keys(bindings: Sequence[Binding], mapped: Mapping[str, str]) -> list[Line]:
    out: list[Line] = []
    group = ""
    for binding in bindings:
        title = binding.group.description if binding.group else ""
        if title != group:
            group = title
            out += [[], [(title, "head")]]
        names = " ".join(map(key_name, keys_of(binding, mapped)))
        out.append([(f"  {names:<16}", "accent"), (binding.tooltip or binding.description, "")])
    out += [[(f"  {'ctrl p':<16}", "accent"), ("palette: every action by name, and the themes", "")],
            [(f"  {'q ctrl c':<16}", "accent"), ("quit", "")]]  # fmt: skip
    return out


def _states() -> list[Line]:
    out: list[Line] = [[], [("states of trainers and workers", "head")]]
    out.append([(f"  {STARVING_GLYPH} {'STARVING':<14}", "starving"), (STARVING_HELP, "")])
    out += [[(f"  {GLYPHS[word]} ", word), (f"{word:<14}", ""), (STATES[word], "")] for word in STATE_WORDS if word in STATES]
    return out


def _columns() -> list[Line]:
    out: list[Line] = [[], [("columns", "head")]]
    return out + [[(f"  {title:<16}", ""), (text, "")] for title, text in COLUMNS.items()]


def _lanes() -> list[Line]:
    out: list[Line] = [[], [("lanes", "head")], [(_HELD, "dim")]]
    return out + [
        [(f"  {field.title:<16}", ""), (f"{field.unit:<6}", "dim"), (f"{field.source}  {field.help}".rstrip(), "")]
        for field in FIELDS.values()
    ]
