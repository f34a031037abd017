"""`?`: the keys, the states and the lanes, from the very registries that the screen uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.binding import Binding

from gputop.model.fields import FIELDS
from gputop.session.session import STATE_WORDS
from gputop.tui.draw import Line
from gputop.tui.draw.procs import GLYPHS, STARVING_GLYPH
from gputop.tui.keymap import keys_of
from gputop.tui.screens.box import Box

STATES = {
    "running": "on a CPU", "runnable": "wants a CPU and has none", "disk": "waits for block I/O",
    "memory": "waits for memory: reclaim, swap", "throttled": "its cgroup's CPU quota is used up",
    "blocked": "waits for a lock, a pipe, the network", "ahead": "idle, its queue is full: healthy",
    "stopped": "stopped by a signal", "computing": "the trainer works", "waiting-data": "the trainer waits for its loader",
    "waiting-gpu": "the trainer waits for the GPU", "transfer": "copies to or from the GPU", "sleeping": "sleeps", "dead": "has ended",
}  # fmt: skip
COLUMNS = {
    "STATE": "with ~ inferred: what it waits for cannot be read, as of another user's process",
    "power": "with ~ what the driver averages over about a second",
    "RUNQ%": "the main thread wanted a CPU and had none",
    "SW/s INV/s": "context switches, involuntary ones, of all threads; of others than trainers and workers by eBPF alone",
}
STARVING_HELP = "the trainer waits for data and this worker cannot deliver"
_HELD = "  a dimmed cell repeats the last reading: the driver has not measured again"
_KEY_NAMES = {
    "left": "Left", "right": "Right", "up": "Up", "down": "Down",
    "slash": "/", "question_mark": "?", "full_stop": ".", "comma": ",", "plus": "+",
    "minus": "-", "equals_sign": "=", "backslash": "\\", "grave_accent": "`", "left_square_bracket": "[", "right_square_bracket": "]",
    "shift+left": "shift Left", "shift+right": "shift Right", "escape": "Esc", "pagedown": "PgDn", "pageup": "PgUp", "enter": "Enter",
    "home": "Home", "end": "End", "ctrl+p": "ctrl p", "asterisk": "*", "less_than_sign": "<", "greater_than_sign": ">", "at": "@",
    "left_parenthesis": "(", "right_parenthesis": ")", "left_curly_bracket": "{", "right_curly_bracket": "}", "dollar_sign": "$",
    "ctrl+left": "ctrl Left", "ctrl+right": "ctrl Right",
}  # fmt: skip


class HelpScreen(Box):
    """Every key that works on the dashboard, and what the signs mean."""

    TITLE = "gputop: keys and signs   (↑↓ scroll, Esc closes)"
    REFRESH_S = 0.0

    BINDINGS = [Binding("question_mark", "dismiss", "close", show=False)]

    def lines(self) -> Sequence[Line]:
        """Keys by group, then states, columns, lanes."""
        dashboard = self.app.screen_stack[0]
        return [*_keys(dashboard.BINDINGS, self.app._keymap), *_states(), *_columns(), *_lanes()]


def _keys(bindings: Sequence[object], mapped: Mapping[str, str]) -> list[Line]:
    out: list[Line] = []
    group = ""
    for binding in bindings:
        if not isinstance(binding, Binding):
            continue
        title = binding.group.description if binding.group else ""
        if title != group:
            group = title
            out += [[], [(title, "head")]]
        names = " ".join(key_name(key) for key in keys_of(mapped.get(binding.id or "") or binding.key))
        out.append([(f"  {names:<16}", "accent"), (binding.tooltip or binding.description, "")])
    out += [[(f"  {'ctrl p':<16}", "accent"), ("palette: every action by name, and the themes", "")],
            [(f"  {'q ctrl c':<16}", "accent"), ("quit", "")]]  # fmt: skip
    return out


def key_name(key: str) -> str:
    """A key as it is printed on a keyboard."""
    return _KEY_NAMES.get(key, key)


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
