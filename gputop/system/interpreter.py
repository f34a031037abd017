"""How this program starts itself: never a module of the folder that it stands in, which may be anybody's (`python -m` would)."""

from __future__ import annotations

import sys

_BY_HAND = "import sys; del sys.path[0]; from runpy import run_module; run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def argv_of(module: str, *arguments: str, has_safe_path: bool = sys.version_info >= (3, 11)) -> list[str]:
    """What runs ``module`` as ``python -m`` does, by this very interpreter; ``-P`` came with Python 3.11."""
    return [sys.executable, *(("-P", "-m") if has_safe_path else ("-c", _BY_HAND)), module, *arguments]
