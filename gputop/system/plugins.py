"""Other people's plug-ins, by the entry points of installed packages (docs/plugins.md): sources, causes, exports.

Here names are read alone; a plug-in is imported when it is used. A broken plug-in costs a line, and affects no other.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from typing import NamedTuple

GROUPS = SOURCES, CAUSES, EXPORTS = "gputop.sources", "gputop.causes", "gputop.exports"
MOST_BYTES = 1 << 16  # of one package's entry points; the largest here has 4 KB
_LINE = re.compile(r"([a-z0-9][a-z0-9_-]{0,39})\s*=\s*([\w.]+):(\w+)\s*(?:\[.*\])?")  # name = module:attribute [extras]
_told: set[Plugin] = set()


class Plugin(NamedTuple):
    """One entry point."""

    name: str
    module: str
    attribute: str
    package: str  # ``name-version`` of the distribution


def plugins(group: str) -> tuple[Plugin, ...]:
    """Plugins of a group, by name; of two with one name, the first on the path."""
    return _found(tuple(sys.path)).get(group, ())


def load(plugin: Plugin) -> object:
    """Load the object that the entry point names. Raises what its import raises; SystemExit, which would end gputop, becomes
    ImportError."""
    from importlib import import_module

    try:
        return getattr(import_module(plugin.module), plugin.attribute)
    except SystemExit as error:
        raise ImportError(f"it exits when it is imported ({error})") from error


def tell(plugin: Plugin, error: BaseException) -> str:
    """Print once, on standard error, that a plug-in is broken; returns the line."""
    line = f"the plug-in {plugin.name} of {plugin.package}: {type(error).__name__}: {error}"
    if plugin not in _told:
        from gputop.system.console import notify

        _told.add(plugin)
        notify(line)
    return line


@cache
def _found(path: tuple[str, ...]) -> dict[str, tuple[Plugin, ...]]:
    """Group -> plug-ins. Read by hand: importlib.metadata takes ten times as long, and each start would pay that."""
    found: dict[str, dict[str, Plugin]] = {}
    for folder in dict.fromkeys(path):
        for package, text in _texts(folder):
            group = ""
            for line in map(str.strip, text.splitlines()):
                if line.startswith("["):
                    group = line.strip("[]").strip()
                elif group in (SOURCES, CAUSES, EXPORTS) and (match := _LINE.fullmatch(line)):
                    found.setdefault(group, {}).setdefault(match[1], Plugin(match[1], match[2], match[3], package))
    return {group: tuple(one for _, one in sorted(named.items())) for group, named in found.items()}


def _texts(folder: str) -> list[tuple[str, str]]:
    """(package, its entry points) of a folder of the path, as far as they name gputop."""
    try:
        names = [name for name in os.listdir(folder or ".") if name.endswith(".dist-info")]
    except OSError:
        return []
    found = []
    for name in sorted(names):
        data = _read(f"{folder or '.'}/{name}/entry_points.txt")
        if b"gputop." in data:
            found.append((name.removesuffix(".dist-info"), data.decode(errors="replace")))
    return found


def _read(path: str) -> bytes:
    """The first `MOST_BYTES` of a file; empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, MOST_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
