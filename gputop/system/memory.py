"""The memory of processes that run for long: garbage is looked for seldom, what is freed goes back to the system."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
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


def forget_unnamed(module: ModuleType, names: Iterable[str]) -> None:
    """Keep of a large module what stands in it under these names, and what that names itself. Nobody else in this process may use it."""
    have, kept, asked = vars(module), set(), list(names)
    while asked:
        name = asked.pop()
        if name in have and name not in kept:
            kept.add(name)
            asked += _named_by(have[name])
    for name in [name for name in have if name not in kept and not name.startswith("__")]:
        del have[name]
    gc.collect()  # classes hold themselves


def _named_by(thing: object) -> Iterator[str]:
    """The globals and attributes that a function or a class's functions may look up."""
    for function in vars(thing).values() if isinstance(thing, type) else (thing,):
        while isinstance(function, FunctionType):
            yield from _names_in(function.__code__)
            function = getattr(function, "__wrapped__", None)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names_in(one)


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
