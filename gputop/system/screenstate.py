"""The state in which the last screen was left: ``screen.json`` in `config.state_folder`, with time base, sort order and theme."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from gputop.system import config
from gputop.system.decoding import BROKEN


class Saved(msgspec.Struct):
    """The state of the last screen."""

    window_s: Annotated[int, msgspec.Meta(ge=10, le=600)] | None = None  # None: the user has chosen none
    sort: str = "natural"
    reverse: bool = False
    tree: bool = True
    theme: str = ""
    columns: tuple[Annotated[str, msgspec.Meta(max_length=16)], ...] = ()  # of the process table; none: the width decides
    lanes: tuple[Annotated[str, msgspec.Meta(max_length=32)], ...] = ()  # fields; none: what happens decides


def path() -> str:
    """Path of screen.json."""
    return os.path.join(config.state_folder(), "screen.json")


def load() -> Saved:
    """The state of the last screen; the defaults if it cannot be read."""
    try:
        return msgspec.json.decode(config.content(path()), type=Saved)
    except (OSError, *BROKEN):
        return Saved()


def save(saved: Saved) -> None:
    """Write screen.json. An error is ignored: the next screen then has the defaults."""
    written = path()
    try:
        os.makedirs(os.path.dirname(written), mode=0o700, exist_ok=True)
        with open(f"{written}.{os.getpid()}", "xb") as file:
            file.write(msgspec.json.encode(saved))
        os.replace(f"{written}.{os.getpid()}", written)
    except OSError:
        pass
