"""Versions of the packages of a process that decide how long a step takes: torch, and the CUDA that it was built for.

They stand in torch/version.py beside the libraries that the process maps; a thread reads them (`gputop.sources.procfs.names`), for the file
system may hang.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from gputop.sources.elf import opened
from gputop.sources.files import read_list
from gputop.system.text import clean

TORCH = "torch"  # in `ProcInfo.libs`
_MAPS_BYTES, _VERSION_BYTES = 8 << 20, 1 << 12  # most bytes read of each file
_MAPPED = re.compile(rb"(/[^\n]*/torch)/lib/libtorch[\w.-]*\.so")
_VERSIONS = (
    ("torch", re.compile(rb"^__version__\s*(?::[^=\n]*)?=\s*['\"]([\w.+!-]{1,48})['\"]", re.MULTILINE)),
    ("CUDA of torch", re.compile(rb"^cuda\s*(?::[^=\n]*)?=\s*['\"]([\w.+-]{1,24})['\"]", re.MULTILINE)),
)


def packages(folder: str) -> dict[str, str]:
    """Package -> version, of the process whose /proc/PID/ is ``folder``; empty if it maps none, or if that cannot be read."""
    if (maps := read_list(folder + "maps", _MAPS_BYTES)) is None or (found := _MAPPED.search(maps)) is None:
        return {}
    with suppress(OSError, ValueError), opened(f"{folder}root{os.fsdecode(found[1])}/version.py") as file:
        text = file.read(_VERSION_BYTES) or b""
        return {name: clean(version[1].decode("ascii", "replace"), 48) for name, pattern in _VERSIONS if (version := pattern.search(text))}
    return {}
