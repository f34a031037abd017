"""The user's own keys: are they keys of actions that there are, and each of one?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.binding import Binding
from textual.keys import _character_to_key


def unknown(bindings: Sequence[object], mapped: Mapping[str, str]) -> str:
    """Which action of ``mapped`` (action -> keys, as Textual's ``set_keymap`` takes them) there is not, empty where all are."""
    actions = list(dict.fromkeys(one.id for one in bindings if isinstance(one, Binding) and one.id))
    return next((f"there is no action {name}; there are {', '.join(actions)}" for name in mapped if name not in actions), "")


def taken_twice(bindings: Sequence[object], mapped: Mapping[str, str]) -> str:
    """Which key would be that of two actions, empty where none would."""
    taken: dict[str, str] = {}
    for one in bindings:
        if isinstance(one, Binding):
            name = one.id or one.action
            for key in keys_of(mapped.get(name) or one.key):
                if taken.setdefault(key, name) != name:
                    return f"{key} would be the key of both {taken[key]} and {name}: give one of them another"
    return ""


def keys_of(keys: str) -> list[str]:
    """The names of keys that are separated by commas: ``q,?`` is ``q`` and ``question_mark``."""
    return [_character_to_key(key) if len(key) == 1 else key for key in map(str.strip, keys.split(","))]
