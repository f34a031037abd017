"""Sizes of a training's groups of ranks, from the configuration files that a rank's command line names.

Only counts of known names are taken from a file: it is the job's, and a reader with root's rights reports nothing else of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from gputop.model.parallel import files_of, sizes_in
from gputop.sources.elf import opened

FILE_BYTES = 1 << 16  # most bytes read of a file; configurations have 1 to 20 KB


def group_sizes(folder: str, words: Sequence[str]) -> dict[str, int]:
    """Dimension -> size, of all files together; the later one counts. ``folder``: its /proc/PID/, by which its own paths are found."""
    found: dict[str, int] = {}
    for path in files_of(words):
        below = os.path.join(folder, "root" if path.startswith("/") else "cwd", path.lstrip("/"))
        with suppress(OSError, ValueError), opened(below) as file:  # ValueError: no path
            if os.fstat(file.fileno()).st_size:  # files of the kernel's have 0, and reading one may take from it, such as /proc/kmsg
                found |= sizes_in(file.read(FILE_BYTES) or b"")
    return found
