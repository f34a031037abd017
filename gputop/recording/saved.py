"""A recording out of blocks that are packed already: what `R` writes after the event."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from gputop.model.frame import Header
from gputop.recording.format import FLAG_KEY, FLAG_MARK, HEAD, MAGIC, pack_header, unpack_frames, unpack_head
from gputop.recording.index import Index
from gputop.recording.shelf import Shelved
from gputop.recording.writer import index_block, write_all
from gputop.system.errors import UserError
from gputop.system.text import clean


def write_blocks(path: str, fd: int, header: Header, blocks: Iterable[Shelved], end_ns: int) -> int:
    """A whole recording until ``end_ns`` into a new file, which is closed; its size in bytes. Where that cannot be it is removed.

    Blocks are copied one by one, for together they need not fit into memory; what the disk does not give back is left out.
    """
    restated = pack_header(header)[len(MAGIC) :]
    try:
        write_all(fd, MAGIC + 2 * restated)
        index = Index(0, [], [], [], end_ns)
        for block in blocks:
            data = block.read()
            _enter(index, data, os.lseek(fd, 0, os.SEEK_CUR))
            write_all(fd, data)
        write_all(fd, restated + index_block(index))
        return os.lseek(fd, 0, os.SEEK_CUR)
    except OSError as error:
        with suppress(OSError):
            os.unlink(path)
        raise UserError(f"cannot write {clean(path)}: {error.strerror}") from None
    finally:
        os.close(fd)


def _enter(index: Index, block: bytes, offset: int) -> None:
    """Note in the index what a block that will stand at ``offset`` begins and bears."""
    head = unpack_head(block)
    if head is None:
        return
    if head.flags & FLAG_KEY or not index.chunks:
        index.chunks.append((head.t_ns, offset))
    if head.flags & FLAG_MARK:
        index.marks.extend(mark for frame in unpack_frames(block[HEAD.size :], head.codec) for mark in frame.marks)
