"""Textual, loaded without what no screen of ours has a use for: half as much again, in memory and in the time to the first picture.

Imported before anything else of Textual's. Who has imported that already has all of it.
"""

from __future__ import annotations

import sys
import typing

from gputop.later import imported_later

_UNUSED = (
    "platformdirs",  # where downloads go
    "mimetypes",  # of downloads
    "pickle",  # of what a style carries for clicks
    "difflib",  # what a wrong word in a style sheet may have been meant for
    "ipaddress",  # in URLs
    "textual.types",  # names for others; it loads widgets
)


if "asyncio" not in sys.modules:
    # It loads OpenSSL where it can, 2 MB that no screen has a use for.
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    import asyncio as asyncio

    if sys.modules["ssl"] is None:
        del sys.modules["ssl"]

_AS_TYPING = "typing_extensions" not in sys.modules and sys.version_info >= (3, 11)
"""All that Textual takes from there is in Python's own typing, too."""
if _AS_TYPING:
    sys.modules["typing_extensions"] = typing
try:
    with imported_later(*_UNUSED):
        import textual.app
        import textual.drivers.linux_driver  # noqa: F401
finally:
    if _AS_TYPING:
        del sys.modules["typing_extensions"]
