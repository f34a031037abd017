"""Textual, loaded without what no screen of ours has a use for: half as much again, in memory and in the time to the first picture.

Imported before anything else of Textual's. Who has imported that already has all of it.
"""

from __future__ import annotations

import sys
import typing
from importlib import import_module
from types import ModuleType

from gputop.later import imported_later

_UNUSED = (
    "platformdirs",  # where downloads go
    "mimetypes",  # of downloads
    "pickle",  # of what a style carries for clicks
    "difflib",  # what a wrong word in a style sheet may have been meant for
    "urllib.parse",  # URLs as input, and of paths
    "traceback",  # of tasks and workers that fail
    "asyncio.sslproto",
    "rich.table",  # what themes look like
    "textual.css._help_text",  # on mistakes in style sheets
    "textual.types",  # names for others; it loads widgets
)


def _load() -> None:
    """All of it that starts a screen."""
    with imported_later(*_UNUSED):
        for name in ("asyncio", "textual.app", "textual.drivers.linux_driver"):
            import_module(name)


def _load_lean() -> None:
    """Without OpenSSL, which asyncio loads where it can, 2 MB; and without a second typing where Python's own has all that is wanted."""
    instead: dict[str, ModuleType | None] = {"ssl": None}
    if sys.version_info >= (3, 11):
        instead["typing_extensions"] = typing
    standing = {name: one for name, one in instead.items() if name not in sys.modules}
    sys.modules.update(standing)  # type: ignore[arg-type]
    try:
        _load()
    finally:
        for name in standing:
            del sys.modules[name]


_before = set(sys.modules)
try:
    _load_lean()
except (AttributeError, ImportError, TypeError):  # another Python, whose libraries want more of each other
    for _name in set(sys.modules) - _before:
        del sys.modules[_name]
    import_module("textual.app")
