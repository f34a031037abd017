"""The memory of processes that run for long: garbage is looked for seldom, what is freed goes back to the system."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""mallopt's parameters (malloc.h)."""
_LARGE_BYTES = 64 << 10


def calm_garbage_collection() -> None:
    """Collect seldom: nearly all we allocate is freed by its reference count, and each sweep would cost milliseconds."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def return_what_is_freed() -> None:
    """One heap for all threads, which hold the interpreter in turns anyway, and large blocks beside it.

    Otherwise glibc keeps a heap for each thread, and what the largest block took once. Other C libraries are left as they are.
    """
    mallopt = _libc_function("mallopt")
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


def return_pages() -> None:
    """Those of the heap on which nothing stands now, as after a key frame; takes a tenth of a millisecond."""
    trim = _libc_function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _libc_function(name: str) -> Any:
    """None where this C library has no such function."""
    import ctypes

    return getattr(ctypes.CDLL(None), name, None)
