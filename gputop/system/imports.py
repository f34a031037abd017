"""Imports by other libraries that gputop does not need, and imports before root is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STANDARD = (
    "base64", "ctypes", "encodings.ascii", "encodings.idna", "encodings.utf_16", "encodings.utf_16_le", "encodings.utf_32_le", "glob",
    "heapq", "json", "queue", "shutil", "socket", "subprocess", "tempfile", "threading", "traceback",
)  # fmt: skip
"""Modules of the standard library that are imported only when they are needed: an encoding when its name is first used."""


def import_msgspec() -> None:
    """Import msgspec, before anything of gputop's does, without typing_extensions: 1.4 MiB and 7 ms. It takes typing's own then."""
    with without("typing_extensions"):
        import msgspec  # noqa: F401


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Within the block, importing one of ``names`` raises ImportError, unless it was imported before.

    For libraries that use a module where there is one. None in `sys.modules` is Python's own mark for that (reference, 5.3.1).
    """
    left_out = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in left_out:
            del sys.modules[name]


def import_for_user(uid: int, *packages: str) -> None:
    """Import every module of the packages, which are needed once root is left, unless that user can import them: Python and gputop may lie
    in root's home."""
    if _can_import_as(uid):
        return
    from importlib import import_module
    from pkgutil import walk_packages

    for name in packages:
        package = import_module(name)
        whole = name not in STANDARD and hasattr(package, "__path__")
        for found in walk_packages(package.__path__, f"{name}.", onerror=lambda _: None) if whole else ():
            if not found.name.endswith(".__main__"):
                with suppress(Exception):  # of an extra that is not installed
                    import_module(found.name)


def _can_import_as(uid: int) -> bool:
    """True if this user can read Python and gputop."""
    os.seteuid(uid)
    try:
        return all(os.access(path, os.R_OK, effective_ids=True) for path in (os.__file__, __file__))
    finally:
        os.seteuid(0)
