"""Packed blocks that need not stand in memory: a thread of their own writes them to a file without a name, so a slow disk delays nothing.

The page cache holds as much as the machine can spare. Where no file can be had (no room, nowhere to write) the blocks stay in memory.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import BinaryIO, TypeAlias

Extent: TypeAlias = "tuple[int, int]"  # offset and size in a file
Freed: TypeAlias = "deque[Extent]"
DISKS = "/var/tmp"  # by the file hierarchy's rules on a disk, where /tmp often is memory; TMPDIR overrides it


class Shelved:
    """One block's bytes, in memory until they are written."""

    __slots__ = ("_file", "_freed", "_offset", "data", "size")

    def __init__(self, data: bytes) -> None:
        self.data: bytes | None = data  # none once they lie in the file
        self.size = len(data)
        self._file: BinaryIO | None = None
        self._freed: Freed | None = None
        self._offset = 0

    def lie(self, file: BinaryIO, freed: Freed, offset: int) -> None:
        """Note that the data now lies at ``offset`` of ``file``; ``freed`` is called once the block is no longer held."""
        self._file, self._freed, self._offset, self.data = file, freed, offset, None

    def read(self) -> bytes:
        """The bytes; none if the disk does not give them back."""
        data = self.data
        if data is not None or self._file is None:
            return data or b""
        try:
            data = os.pread(self._file.fileno(), self.size, self._offset)
        except OSError:
            return b""
        return data if len(data) == self.size else b""

    def __del__(self) -> None:
        if self._freed is not None:
            self._freed.append((self._offset, self.size))


class Shelf:
    """Blocks that come one by one, in one file: the room of a block that is no longer held is used again. The file ends with the last
    block."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._end = 0
        self._freed: Freed = deque()  # set by any thread
        self._free: list[Extent] = []  # in order, none touches the next or the end

    def put(self, data: bytes) -> Shelved:
        """Take a block over; it is written in the background."""
        block = Shelved(data)
        with suppress(RuntimeError):  # no thread is allowed to write it: it stays in memory
            _queue().put((self, block))
        return block

    def write(self, block: Shelved) -> None:
        """Put a block into the file. OSError if that cannot be; the block then stays in memory."""
        if block.data is None:
            return
        if self._file is None:
            self._file = _nameless_file()
        self._take_back()
        at = next((i for i, (_, size) in enumerate(self._free) if size >= block.size), -1)
        offset = self._free[at][0] if at >= 0 else self._end
        if os.pwrite(self._file.fileno(), block.data, offset) != block.size:
            return
        if at < 0:
            self._end += block.size
        elif self._free[at][1] > block.size:
            self._free[at] = offset + block.size, self._free[at][1] - block.size
        else:
            del self._free[at]
        block.lie(self._file, self._freed, offset)

    def _take_back(self) -> None:
        """Make one of the free extents that touch, and the end of the last."""
        while self._freed:
            self._free.append(self._freed.popleft())
        merged: list[Extent] = []
        for offset, size in sorted(self._free):
            if merged and sum(merged[-1]) == offset:
                merged[-1] = merged[-1][0], merged[-1][1] + size
            else:
                merged.append((offset, size))
        if merged and sum(merged[-1]) == self._end:
            self._end = merged.pop()[0]
        self._free = merged


def _nameless_file() -> BinaryIO:
    """A file that only this process can read, removed with its last descriptor. OSError if none can be made."""
    import tempfile  # it takes milliseconds, and the first screen is drawn before anything is shelved

    folder = None if "TMPDIR" in os.environ or not os.access(DISKS, os.W_OK) else DISKS
    return tempfile.TemporaryFile(dir=folder, buffering=0)  # it lives as long as what lies in it


@cache
def _queue() -> SimpleQueue[tuple[Shelf, Shelved]]:
    """Queue of blocks to be written, and its thread. The thread is a daemon, since a disk that hangs must not keep the process from
    ending."""
    waiting: SimpleQueue[tuple[Shelf, Shelved]] = SimpleQueue()
    threading.Thread(target=_write_all, args=(waiting,), name="shelf", daemon=True).start()
    return waiting


def _write_all(waiting: SimpleQueue[tuple[Shelf, Shelved]]) -> None:
    while True:
        shelf, block = waiting.get()
        try:
            shelf.write(block)
        except OSError:
            continue
        finally:
            del shelf, block
