"""The screen: the only part that imports textual."""

from __future__ import annotations

import sys

if "asyncio" not in sys.modules:
    # It loads OpenSSL where it can, 2 MB that no screen has a use for.
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    import asyncio as asyncio

    if sys.modules["ssl"] is None:
        del sys.modules["ssl"]
