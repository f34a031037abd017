"""Reads and writes lines on standard input and output without blocking: no thread waits for a client that is silent or does not read.

The SDK's own reader waits in a thread for the next line, which ends with the process's last breath alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable

import anyio

READ_BYTES = 1 << 16  # of one read
WRITE_BYTES = 4096  # PIPE_BUF: a pipe that can be written to takes so much at once
MOST_LINE_BYTES = 4 << 20  # of a message; a question has 20 kB (a choice)
LAST_S = 1.0  # s after the end of the input for questions that are being answered
_LOOK_S = 0.02  # s between looks whether they are


def claimed() -> tuple[int, int]:
    """Descriptors of what was standard input and output. Those are /dev/null and standard error from now on: whatever else is printed,
    or read by a child, misses the messages."""
    sys.stdout.flush()
    reads, writes = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return reads, writes


class Lines:
    """The lines that come over a descriptor, as what the SDK takes for a file of text."""

    def __init__(self, fd: int, is_busy: Callable[[], bool]) -> None:
        self._fd = fd
        self._is_busy = is_busy

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield lines until the input ends, then wait at most `LAST_S` for questions in progress. A line that is too long comes in parts,
        none of which is a message."""
        rest = b""
        while data := await self._read():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
            if len(rest) > MOST_LINE_BYTES:
                yield rest.decode("utf-8", "replace")
                rest = b""
        if rest:
            yield rest.decode("utf-8", "replace")
        with anyio.move_on_after(LAST_S):
            await anyio.sleep(_LOOK_S)  # the last question begins
            while self._is_busy():
                await anyio.sleep(_LOOK_S)

    async def _read(self) -> bytes:
        while True:
            try:
                await anyio.wait_readable(self._fd)
            except PermissionError:  # a file, which is always ready
                await anyio.lowlevel.checkpoint()
            try:
                return os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # a terminal that is gone
                return b""


class Output:
    """Writes text to a descriptor. Raises BrokenPipeError if its reader has closed it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    async def write(self, text: str) -> None:
        """Write all of the text, in pieces as the reader takes them."""
        rest = memoryview(text.encode())
        while rest:
            try:
                await anyio.wait_writable(self._fd)
            except PermissionError:  # a file
                await anyio.lowlevel.checkpoint()
            try:
                rest = rest[os.write(self._fd, rest[:WRITE_BYTES]) :]
            except BlockingIOError:
                continue

    async def flush(self) -> None:
        """Do nothing: `write` keeps nothing back."""
