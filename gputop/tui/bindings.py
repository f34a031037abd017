"""The dashboard's keys, live and in a replay, their names, and the user's own keys in place of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS

_TIME, _TABLE, _LOOK = Binding.Group("time"), Binding.Group("table"), Binding.Group("look closer")
_KEEP, _SIGNAL = Binding.Group("keep"), Binding.Group("signals (asked first; off with --readonly)")
_REPLAY = Binding.Group("replay")

EVERYWHERE = [
    Binding("q", "quit", "quit", id="quit"),
    Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    Binding("ctrl+z", "suspend_process", "suspend", show=False, priority=True),
]
LIVE = [
    Binding("space", "pause", "pause or follow", id="pause", group=_TIME),
    Binding("left,h", "scrub(-1)", "back in time", id="back", group=_TIME),
    Binding("right,l", "scrub(1)", "forward in time", id="forward", group=_TIME),
    Binding("shift+left,H", "scrub(-10)", "back by ten columns", id="back-far", group=_TIME),
    Binding("shift+right,L", "scrub(10)", "forward by ten columns", id="forward-far", group=_TIME),
    Binding("n", "incident(1)", "next incident", id="next-incident", group=_TIME),
    Binding("N", "incident(-1)", "previous incident", id="previous-incident", group=_TIME),
    Binding("end,grave_accent", "follow", "back to now", id="now", group=_TIME),
    Binding("plus,equals_sign", "zoom(-1)", "shorter time base", id="zoom-in", group=_TIME),
    Binding("minus", "zoom(1)", "longer time base", id="zoom-out", group=_TIME),
    Binding("down,j", "move(1)", "next process", id="down", group=_TABLE),
    Binding("up,k", "move(-1)", "previous process", id="up", group=_TABLE),
    Binding("pagedown,right_square_bracket", "move(10)", "ten processes down", id="page-down", group=_TABLE),
    Binding("pageup,left_square_bracket", "move(-10)", "ten processes up", id="page-up", group=_TABLE),
    Binding("home", "move(-100000)", "first process", id="first", group=_TABLE),
    Binding("o", "sort", "sort by …", id="sort", group=_TABLE),
    Binding("full_stop", "sort_step(1)", "next sort column", id="sort-next", group=_TABLE),
    Binding("comma", "sort_step(-1)", "previous sort column", id="sort-previous", group=_TABLE),
    Binding("backslash", "reverse", "reverse the order", id="reverse", group=_TABLE),
    Binding("t", "tree", "families or a flat list", id="tree", group=_TABLE),
    Binding("b", "bystanders", "show or hide bystanders", id="bystanders", group=_TABLE),
    Binding("slash", "filter", "filter", id="filter", group=_TABLE),
    Binding("escape", "clear", "clear selection and filter", id="clear", group=_TABLE),
    Binding("s", "stacks", "stacks of what is stalled, or of the selected process", id="stacks", group=_LOOK),
    Binding("e", "explain", "why: the evidence and what to do", id="explain", group=_LOOK),
    Binding("w", "contention", "who took CPU from whom", id="contention", group=_LOOK),
    Binding("enter", "details", "one process", id="details", group=_LOOK),
    Binding("z", "enlarge", "a lane with axes and percentiles", id="enlarge", group=_LOOK),
    Binding("g", "gpu(1)", "next GPU", id="gpu", group=_LOOK),
    Binding("G", "gpu(-1)", "previous GPU", id="gpu-previous", group=_LOOK),
    Binding("question_mark,f1", "help", "this help", id="help", group=_LOOK),
    Binding("r", "record", "record to a file, from now until r again", id="record", group=_KEEP),
    Binding("R", "save", "save the last ten minutes to a file", id="save", group=_KEEP),
    Binding("asterisk", "tag", "tag a process", id="tag", group=_SIGNAL),
    Binding("I", "signal('INT')", "SIGINT to the tagged or selected", id="sigint", group=_SIGNAL),
    Binding("T", "signal('TERM')", "SIGTERM", id="sigterm", group=_SIGNAL),
    Binding("K", "signal('KILL')", "SIGKILL", id="sigkill", group=_SIGNAL),
]
REPLAY = [
    Binding("space", "pause", "play or pause; while looking back: play on from there", id="pause", group=_REPLAY),
    Binding("less_than_sign", "speed(-1)", "slower, down to 0.25×", id="slower", group=_REPLAY),
    Binding("greater_than_sign", "speed(1)", "faster, up to 64×", id="faster", group=_REPLAY),
    Binding("f", "step(1)", "one frame forward", id="step", group=_REPLAY),
    Binding("F", "step(-1)", "one frame back", id="step-back", group=_REPLAY),
    Binding("left_parenthesis,ctrl+left", "jump(-10)", "10 s back", id="jump-back", group=_REPLAY),
    Binding("right_parenthesis,ctrl+right", "jump(10)", "10 s forward", id="jump", group=_REPLAY),
    Binding("left_curly_bracket", "jump(-60)", "a minute back", id="jump-back-far", group=_REPLAY),
    Binding("right_curly_bracket", "jump(60)", "a minute forward", id="jump-far", group=_REPLAY),
    Binding("at", "moment", "go to a clock time, 90s, 50% or a marker", id="moment", group=_REPLAY),
    Binding("0", "edge(0)", "go to the start", id="start", group=_REPLAY),
    Binding("dollar_sign", "edge(1)", "go to the end", id="last", group=_REPLAY),
    Binding("a", "loop", "play in a loop, or once", id="loop", group=_REPLAY),
    Binding("end,grave_accent", "follow", "back to where the replay is", id="now", group=_REPLAY),
    *(one for one in LIVE if one.id not in ("pause", "now", "record")),
]
NOT_IN_REPLAY = [one for one in LIVE if one.id == "record"]  # keys that a replay answers with a word, and does not list

_KEY_NAMES = {
    "left": "Left", "right": "Right", "up": "Up", "down": "Down",
    "slash": "/", "question_mark": "?", "full_stop": ".", "comma": ",", "plus": "+",
    "minus": "-", "equals_sign": "=", "backslash": "\\", "grave_accent": "`", "left_square_bracket": "[", "right_square_bracket": "]",
    "shift+left": "shift Left", "shift+right": "shift Right", "escape": "Esc", "pagedown": "PgDn", "pageup": "PgUp", "enter": "Enter",
    "home": "Home", "end": "End", "ctrl+p": "ctrl p", "asterisk": "*", "less_than_sign": "<", "greater_than_sign": ">", "at": "@",
    "left_parenthesis": "(", "right_parenthesis": ")", "left_curly_bracket": "{", "right_curly_bracket": "}", "dollar_sign": "$",
    "ctrl+left": "ctrl Left", "ctrl+right": "ctrl Right",
}  # fmt: skip


def key_name(key: str) -> str:
    """A key as it is printed on a keyboard."""
    return _KEY_NAMES.get(key, key)


def keys_of(binding: Binding, mapped: Mapping[str, str]) -> list[str]:
    """Textual's names of a binding's keys, or of the user's own: ``q,?`` is ``q`` and ``question_mark``."""
    keys = mapped.get(binding.id or binding.action) or binding.key
    return [textual_key(key) if len(key) == 1 else key for key in map(str.strip, keys.split(","))]


def textual_key(character: str) -> str:
    """Textual's name of the key that types a character: letters and digits are their own, others have their Unicode name."""
    if character.isalnum():
        return character
    name = unicodedata.name(character, character).lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


def unknown_action(bindings: Sequence[Binding], mapped: Mapping[str, str]) -> str:
    """Which action of ``mapped`` (action -> keys) does not exist, in a sentence; empty where all do."""
    actions = list(dict.fromkeys(one.id for one in bindings if one.id))
    return next((f"there is no action {name}; there are {', '.join(actions)}" for name in mapped if name not in actions), "")


def key_taken_twice(bindings: Sequence[Binding], mapped: Mapping[str, str]) -> str:
    """Which key two actions would have, in a sentence; empty where none."""
    taken: dict[str, str] = {}
    for one in bindings:
        name = one.id or one.action
        for key in keys_of(one, mapped):
            if taken.setdefault(key, name) != name:
                return f"{key} would be the key of both {taken[key]} and {name}: give one of them another"
    return ""
