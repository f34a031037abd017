"""Recordings as they are written."""

from __future__ import annotations

import os

from gputop.errors import UserError
from gputop.frame import Header
from gputop.recording.format import MAGIC
from gputop.recording.format import pack_header
from gputop.recording.output import create
from gputop.text import clean


def write_blocks(path: str, header: Header, blocks: list[bytes]) -> int:
    """A whole recording of packed blocks in a new file; its size in bytes."""
    opening = pack_header(header)
    data = b"".join((opening, opening[len(MAGIC) :], *blocks))
    fd = create(path)
    try:
        write_all(fd, data)
    except OSError as error:
        os.unlink(path)
        raise UserError(f"cannot write {clean(path)}: {error.strerror}") from None
    finally:
        os.close(fd)
    return len(data)


def write_all(fd: int, data: bytes) -> None:
    """All of ``data``, however many writes that takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
