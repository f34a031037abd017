"""Opening a file that somebody names: what is none is said at once, and never waited for or read without end."""

from __future__ import annotations

import os
import stat

from gputop.recording.format import FormatError
from gputop.system.text import clean


def open_regular(path: str) -> int:
    """A descriptor of ``path`` to read from. FormatError, in one line, where it cannot be opened or is no regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        mode = os.fstat(fd).st_mode
    except OSError as error:
        raise FormatError(f"cannot open {clean(path) or 'a file without a name'}: {error.strerror}") from None
    except ValueError:
        raise FormatError(f"{clean(path)!r} is no file name") from None
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise FormatError(f"{clean(path)} is a directory" if stat.S_ISDIR(mode) else f"{clean(path)} is no regular file")
