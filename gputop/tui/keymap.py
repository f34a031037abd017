"""The user's own keys: are they keys of actions that there are, and each of one?"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

from textual.binding import Binding
from textual.keys import _character_to_key


def problem(bindings: Sequence[object], mapped: Mapping[str, str]) -> str:
    """What is wrong with ``mapped`` (action -> keys, as Textual's ``set_keymap`` takes them), empty where nothing is."""
    known = [one for one in bindings if isinstance(one, Binding)]
    actions = [one.id for one in known if one.id]
    for name in mapped:
        if name not in actions:
            return f"there is no action {name}; there are {', '.join(actions)}"
    taken: dict[str, str] = {}
    for one in known:
        name = one.id or one.action
        for key in keys_of(mapped.get(name) or one.key):
            if taken.setdefault(key, name) != name:
                return f"{key} would be the key of both {taken[key]} and {name}: give one of them another"
    return ""


def keys_of(keys: str) -> list[str]:
    """The names of keys that are separated by commas: ``q,?`` is ``q`` and ``question_mark``."""
    return [_character_to_key(key) if len(key) == 1 else key for key in map(str.strip, keys.split(","))]
