"""gputop: what the GPU does and what the host does to it, on one time axis."""

import sys

__version__ = "0.1.0"

if sys.modules.keys().isdisjoint(("msgspec", "typing_extensions")):
    # Where typing_extensions is installed msgspec takes what typing has, too, from there. That loads inspect, ast and tokenize with it:
    # 1.3 MB in each of our processes, and 8 ms of each start.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]
