"""The dashboard's keys, live and in a replay, a user's own keys instead, and `?`, the help that lists them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace

from textual import events
from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, key_to_character

from gputop.model.fields import FIELDS
from gputop.stream.session import STATE_WORDS
from gputop.system.program import DOCUMENTATION
from gputop.system.text import cell_width
from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.draw import Line, Span, folded, safe_line
from gputop.tui.draw.search import matches
from gputop.tui.draw.table import GLYPHS, STARVING_GLYPH
from gputop.tui.feed import Context

_TIME, _TABLE, _LOOK = Binding.Group("time"), Binding.Group("table"), Binding.Group("look closer")
TWO_COLUMNS = 120  # columns from which the help has keys and signs beside each other
_KEEP, _SIGNAL = Binding.Group("keep"), Binding.Group("signals (asked first; off with --readonly)")
_REPLAY = Binding.Group("replay")
_FIX = Binding.Group("do something about it (asked first; off with --readonly)")
_VIEW, _DO = Binding.Group("view"), Binding.Group("do")

EVERYWHERE = [
    Binding("q,f10", "quit", "quit", id="quit"),
    Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    Binding("ctrl+z", "suspend_process", "suspend", show=False, priority=True),
]
LIVE = [
    Binding("e", "explain", "why: the evidence and what to do", id="explain", group=_LOOK),
    Binding("s", "stacks", "stacks of what is stalled, or of the selected process", id="stacks", group=_LOOK),
    Binding("T", "trace", "a trace by torch.profiler, beside gputop's shares", id="trace", group=_LOOK),
    Binding("c", "copy_fix", "copy the command that would help", id="copy", group=_LOOK),
    Binding("enter", "details", "one process; none selected: the heat map's GPU", id="details", group=_LOOK),
    Binding("z", "enlarge", "a lane, or the heat map's GPU, large, with a cursor", id="enlarge", group=_LOOK),
    Binding("v", "lanes", "choose lanes by hand", id="lanes", group=_LOOK),
    Binding("w", "contention", "who took CPU from whom", id="contention", group=_LOOK),
    Binding("g", "gpu(1)", "next GPU", id="gpu", group=_LOOK),
    Binding("G", "gpu(-1)", "previous GPU", id="gpu-previous", group=_LOOK),
    Binding("question_mark,f1", "help", "this help", id="help", group=_LOOK),
    Binding("space", "pause", "pause or follow; on a selected trainer: fold its family", id="pause", group=_TIME),
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
    Binding("o,f6", "sort", "sort by …", id="sort", group=_TABLE),
    Binding("f2", "columns", "columns of the table", id="columns", group=_TABLE),
    Binding("full_stop", "sort_step(1)", "next sort column", id="sort-next", group=_TABLE),
    Binding("comma", "sort_step(-1)", "previous sort column", id="sort-previous", group=_TABLE),
    Binding("backslash", "reverse", "reverse the order", id="reverse", group=_TABLE),
    Binding("t,f5", "tree", "families or a flat list", id="tree", group=_TABLE),
    Binding("b", "bystanders", "show or hide bystanders", id="bystanders", group=_TABLE),
    Binding("slash", "filter", "filter", id="filter", group=_TABLE),
    Binding("escape", "clear", "clear selection and filter", id="clear", group=_TABLE),
    Binding("x", "apply", "apply the fix on the line, after a question", id="apply", group=_FIX),
    Binding("u", "undo_fix", "undo it (k: keep it when gputop ends)", id="undo", group=_FIX),
    Binding("p", "prove", "prove the cause: switch it off and on", id="prove", group=_FIX),
    Binding("r", "record", "record to a file, from now until r again", id="record", group=_KEEP),
    Binding("R", "save", "save the last ten minutes to a file", id="save", group=_KEEP),
    Binding("y", "share", "share: write the incident's page, copy its path", id="share", group=_KEEP),
    Binding("asterisk", "tag", "tag a process", id="tag", group=_SIGNAL),
    Binding("I", "signal('INT')", "SIGINT to the tagged or selected", id="sigint", group=_SIGNAL),
    Binding("f9", "signal('TERM')", "SIGTERM", id="sigterm", group=_SIGNAL),
    Binding("K", "signal('KILL')", "SIGKILL", id="sigkill", group=_SIGNAL),
]
REPLAY = [
    *(one for one in LIVE if one.group == _LOOK),
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
    *(one for one in LIVE if one.group != _LOOK and one.id not in ("pause", "now", "record")),
]
NOT_IN_REPLAY = [one for one in LIVE if one.id == "record"]  # keys that a replay answers with a word, and does not list


def _but(bindings: Sequence[Binding], texts: Mapping[str, str]) -> list[Binding]:
    """The bindings, some with another text (action's id -> text)."""
    return [replace(one, description=texts.get(one.id or "", one.description)) for one in bindings]


_BACK = "clear selection and filter, or go back to the nodes"
NODE = _but(LIVE, {"clear": _BACK})
RECORDED_NODE = _but(REPLAY, {"clear": _BACK})


def _also(id: str, text: str, group: Binding.Group = _VIEW, key: str = "") -> Binding:
    """The dashboard's action of this name on the screen over many nodes; ``key`` in place of its own keys where those are taken there."""
    own = next(one for one in LIVE if one.id == id)
    return replace(own, description=text, group=group, key=key or own.key)


FLEET = [
    Binding("n", "view('nodes')", "the nodes", id="nodes", group=_VIEW),
    Binding("j", "view('jobs')", "the jobs", id="jobs", group=_VIEW),
    Binding("r", "view('ranks')", "the ranks of the job", id="ranks", group=_VIEW),
    _also("down", "next node, or job", key="down"),
    _also("up", "node, or job, before", key="up"),
    _also("page-down", "ten down"),
    _also("page-up", "ten up"),
    _also("sort", "sort nodes: worst, as named, lost, CPU, steps"),
    _also("filter", "only nodes with these words, or !regex"),
    _also("clear", "clear selection and filter"),
    Binding("enter", "open", "open the node: its whole screen, live; Esc comes back", id="open", group=_DO),
    _also("stacks", "stacks of all ranks of the job, of one moment", _DO),
    _also("copy", "copy the chosen node's fix", _DO),
    _also("explain", "why: the job's losses, its late rank, and notes on its nodes", _DO),
    _also("save", "save the last ten minutes of every node", _DO),
    _also("help", "this help", _DO),
]
_PLAYED = (
    "pause", "back", "forward", "back-far", "forward-far", "slower", "faster", "jump-back", "jump", "jump-back-far", "jump-far", "start",
    "last", "loop",
)  # fmt: skip
FLEET_REPLAY = [
    *_but(FLEET, {"open": "open the node: its replay from this moment; Esc comes back, to the moment it shows then"}),
    *_but([one for one in REPLAY if one.id in _PLAYED], {"pause": "play or pause, all nodes"}),
]

_KEY_NAMES = {"escape": "Esc", "pagedown": "PgDn", "pageup": "PgUp"}
_UNICODE_NAMES = {key: name for name, key in KEY_NAME_REPLACEMENTS.items()} | {"minus": "-"}
_KEY_NAMES |= {f"f{number}": f"F{number}" for number in range(1, 13)}
_KEY_NAMES |= {key: key.capitalize() for key in ("left", "right", "up", "down", "home", "end", "enter")}
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
_HELD = "  a cell without a new reading repeats the last one, while the driver has no newer one"


def key_name(key: str) -> str:
    """A key of Textual's as it is printed on a keyboard: ``shift+left`` is ``shift Left``, ``slash`` is ``/``."""
    modifier, plus, key = key.rpartition("+")
    typed = key_to_character(_UNICODE_NAMES.get(key, key)) or ""
    name = _KEY_NAMES.get(key) or (typed if typed.isprintable() else "").strip() or key
    return f"{modifier} {name}" if plus else name


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


def wrong_keys(mapped: Mapping[str, str], ours: Sequence[Binding]) -> str:
    """A sentence about a mistake in a user's keys (action -> keys) on a screen with these bindings, else empty."""
    return unknown_action([*EVERYWHERE, *LIVE, *REPLAY, *FLEET], mapped) or key_taken_twice([*EVERYWHERE, *ours], mapped)


def unknown_action(bindings: Sequence[Binding], mapped: Mapping[str, str]) -> str:
    """A sentence that names an action of ``mapped`` (action -> keys) that does not exist; empty if all exist."""
    actions = list(dict.fromkeys(one.id for one in bindings if one.id))
    return next((f"there is no action {name}; there are {', '.join(actions)}" for name in mapped if name not in actions), "")


def key_taken_twice(bindings: Sequence[Binding], mapped: Mapping[str, str]) -> str:
    """A sentence that names a key which two actions would have, else empty."""
    taken: dict[str, str] = {}
    for one in bindings:
        name = one.id or one.action
        for key in keys_of(one, mapped):
            if taken.setdefault(key, name) != name:
                return f"{key} would be the key of both {taken[key]} and {name}: give one of them another"
    return ""


class HelpScreen(Box):
    """`?`: keys, states, columns and lanes, from the registries that the screen uses."""

    TITLE = "gputop: keys and signs   (↑↓ scroll, / finds, Esc closes)"
    NAME = ("?", "help")
    REFRESH_S = 0.0

    BINDINGS = [Binding("question_mark", "dismiss", "close", show=False), Binding("slash", "find", "find")]
    FOOTER = (("/", "find", "find"), ("↑↓", "scroll", "scroll(1)"), CLOSE_KEY)

    def __init__(self, context: Context, keys: Sequence[Binding]) -> None:
        super().__init__(context)
        self._keys = keys
        self._words: str | None = None  # what is looked for; None: nothing
        self._is_typing = False

    @property
    def first_line(self) -> str:
        """The title, or what is looked for."""
        if self._words is None:
            return self.TITLE
        return f"find: {self._words}{'█   (Enter keeps it, Esc ends it)' if self._is_typing else '   (/ finds another, Esc closes)'}"

    def action_find(self) -> None:
        """Take what is typed as words to look for."""
        self._words, self._is_typing = "", True
        self.refresh_text()

    def on_key(self, event: events.Key) -> None:
        """Take what is typed while it is looked for."""
        if not self._is_typing or self._words is None:
            return
        event.stop()
        event.prevent_default()
        if event.key in ("enter", "escape"):
            self._is_typing = False
            self._words = self._words if event.key == "enter" and self._words else None
        elif event.key == "backspace":
            self._words = self._words[:-1]
        elif event.is_printable and event.character:
            self._words += event.character
        self.refresh_text()

    def lines(self) -> Sequence[Line]:
        """Keys by group, and states, columns, lanes, beside each other where there is room; or only lines with the words looked for."""
        keys, signs = _key_lines(self._keys, self.context.look.keys), self._signs()
        if self._words:
            found = [line for line in (*keys, *signs) if line and matches(self._words, ["".join(text for text, _ in line)])]
            return found or [[("nothing has it", "dim")]]
        if self.text_width < TWO_COLUMNS:
            return [*keys, [], *signs]
        room = self.text_width // 2 - 2
        left, right = ([row for line in lines for row in folded(safe_line(line), room)] for lines in (keys, signs))
        rows = max(len(left), len(right))
        left, right = (column + [[]] * (rows - len(column)) for column in (left, right))
        return [[*_padded(one, room + 2), *other] for one, other in zip(left, right, strict=True)]

    def _signs(self) -> list[Line]:
        out: list[Line] = [[("states of trainers and workers", "head")]]
        out.append([(f"  {STARVING_GLYPH} {'STARVING':<14}", "starving"), (STARVING_HELP, "")])
        out += [[(f"  {GLYPHS[word]} ", word), (f"{word:<14}", ""), (STATES[word], "")] for word in STATE_WORDS if word in STATES]
        out += [[], [("columns", "head")], *([(f"  {title:<16}", ""), (text, "")] for title, text in COLUMNS.items())]
        out += [[], [("lanes", "head")], [(_HELD, "dim")]]
        for field in FIELDS.values():
            out.append([(f"  {field.title:<16}", ""), (f"{field.unit:<6}", "dim"), (f"{field.source}  {field.help}".rstrip(), "")])
        return [*out, [], [("causes", "head")], [("  a page for each      ", ""), (f"{DOCUMENTATION}causes/", "accent")]]


def _padded(line: Line, width: int) -> list[Span]:
    return [*line, (" " * (width - sum(cell_width(text) for text, _ in line)), "")]


def _key_lines(bindings: Sequence[Binding], mapped: Mapping[str, str]) -> list[Line]:
    out: list[Line] = []
    group = ""
    for binding in bindings:
        title = binding.group.description if binding.group else ""
        if title != group:
            group = title
            out += [[]] * bool(out) + [[(title, "head")]]
        names = " ".join(map(key_name, keys_of(binding, mapped)))
        out.append([(f"  {names:<16}", "accent"), (binding.tooltip or binding.description, "")])
    out += [[(f"  {'ctrl p':<16}", "accent"), ("palette: every action by name, and the themes", "")],
            [(f"  {'q ctrl c':<16}", "accent"), ("quit", "")]]  # fmt: skip
    return out
