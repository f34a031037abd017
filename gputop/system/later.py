"""Modules that a library imports at once and that we may never need: imported when something of theirs is asked for.

In place of each stands for a while one whose every name is a function; to call one imports the module. Who took the name of the module
itself finds the module's own things there as soon as the while is over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


class StandIn(ModuleType):
    """Stands for the module of this name."""

    def __getattr__(self, name: str) -> Any:
        """What the module has under that name, or while we stand for it a function that calls what it has."""
        if name.startswith("__"):
            raise AttributeError(name)
        return _calling(self.__name__, name) if sys.modules.get(self.__name__) is self else getattr(_itself(self.__name__), name)


def _calling(module: str, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(_itself(module), name)(*arguments, **named)

    return call


def _itself(name: str) -> ModuleType:
    """The module, whatever stands for it."""
    if isinstance(sys.modules.get(name), StandIn):
        del sys.modules[name]
    return import_module(name)


@contextmanager
def imported_later(*modules: str) -> Iterator[None]:
    """While this lasts ``modules`` are imported in name alone, unless they are there already. For modules of functions: what somebody
    takes from one by its name must not be a class to inherit from, nor a number."""
    with _standing({name: StandIn(name) for name in modules}):
        yield


@contextmanager
def untranslated() -> Iterator[None]:
    """While this lasts, who imports gettext, as argparse does, gets words as they are: translating takes as much as parsing itself."""
    words = ModuleType("gettext")
    vars(words).update(gettext=lambda text: text, ngettext=lambda one, many, count: one if count == 1 else many)
    with _standing({"gettext": words}):
        yield


def import_lean(names: Sequence[str], later: Sequence[str] = (), instead: Mapping[str, ModuleType | None] | None = None) -> None:
    """Import ``names`` without what stands in ``later``, and with another module, or none, ``instead`` of some.

    Where libraries want more of each other, as in another version they may, all of them are imported as they are.
    """
    before = set(sys.modules)
    try:
        with _standing(instead or {}), imported_later(*later):
            _import_all(names)
    except (AttributeError, ImportError, TypeError):
        for name in set(sys.modules) - before:
            del sys.modules[name]
        _import_all(names)


@contextmanager
def _standing(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Whoever imports one of these names meanwhile gets what stands for it, None being no module; those that are there already stay."""
    standing = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(standing)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in standing.items():
            if name in sys.modules and sys.modules[name] is module:
                del sys.modules[name]


def _import_all(names: Sequence[str]) -> None:
    for name in names:
        import_module(name)
