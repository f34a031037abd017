"""The last line: the keys that matter now."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.system.text import ascii_text, cell_width, fit
from gputop.tui.draw import Line, Span
from gputop.tui.view import View

Key = tuple[str, str, str]
"""What is pressed, the word beside it, the action."""

KEYS: tuple[Key, ...] = (
    ("q", "quit", "quit"), ("?", "help", "help"), ("space", "pause", "pause"), ("←→", "scrub", "scrub(-1)"),
    ("s", "stacks", "stacks"), ("e", "explain", "explain"), ("z", "enlarge", "enlarge"), ("r", "record", "record"),
    ("R", "save last 10 min", "save"), ("/", "filter", "filter"), ("o", "sort", "sort"), ("t", "tree", "tree"),
    ("+-", "zoom", "zoom(1)"), ("^p", "palette", "command_palette"),
)  # fmt: skip


def lines(view: View, note: str, keys: Sequence[Key] = KEYS) -> list[Line]:
    """Keys and their actions, as many as fit; a note (what was done, what went wrong) takes their place for a while."""
    if note:
        return [[(fit(f" {note}", view.width), "accent")]]
    spans: list[Span] = []
    left = view.width
    for key, word, _ in keys:
        if len(key) + len(word) + 4 > left:
            break
        spans += [(f" {key}", "accent"), (f" {word} ", "")]
        left -= len(key) + len(word) + 3
    return [spans]


def action_at(text: str, x: int, keys: Sequence[Key]) -> str | None:
    """The action whose key and word stand in a column of a line that is shown."""
    for key, word, action in keys:
        shown = f" {key} {word}"
        at = max(text.find(shown), text.find(ascii_text(shown)))
        if at >= 0 and 0 <= x - cell_width(text[:at]) < len(shown):
            return action
    return None
