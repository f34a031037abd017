"""Memory of long-running processes: rare garbage collections, and freed memory goes back to the system."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of mallopt (malloc.h)
_LARGE_BYTES = 64 << 10  # blocks from this size on are mapped by themselves


def calm_garbage_collection() -> None:
    """Make collections rare: nearly everything is freed by reference counting, and each collection costs milliseconds."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def return_freed_memory() -> None:
    """Let glibc use one heap for all threads, and mappings for large blocks, which go back to the system when freed.

    By default glibc keeps a heap per thread, and the memory of the largest block for ever. Threads of Python hold the GIL in turns anyway.
    Other C libraries have no mallopt and stay as they are.
    """
    mallopt = _libc_function("mallopt")
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


def return_pages() -> None:
    """Give the heap's unused pages back, for instance after a key frame; takes 0.1 ms."""
    trim = _libc_function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _libc_function(name: str) -> Any:
    """A function of the C library, None if it has none of this name."""
    import ctypes

    return getattr(ctypes.CDLL(None), name, None)
