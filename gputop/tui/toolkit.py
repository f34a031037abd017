"""Textual, loaded without what no screen of ours has a use for: half as much again, in memory and in the time to the first picture.

Imported before anything else of Textual's. Who has imported that already has all of it.
"""

from __future__ import annotations

import sys
import typing

from gputop.system.later import import_lean

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

import_lean(
    ("asyncio", "textual.app", "textual.drivers.linux_driver"),
    _UNUSED,
    # OpenSSL, which asyncio loads where it can, takes 2 MB; and a second typing nobody needs where Python's own has all that is asked for.
    {"ssl": None, "typing_extensions": typing} if sys.version_info >= (3, 11) else {"ssl": None},
)
