"""What decoding raises where the bytes are not what they should be."""

from __future__ import annotations

import msgspec

BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)
"""By msgspec, json, tomllib and `bytes.decode`. Whoever writes the bytes chooses: a field that nobody asked for and that nests a thousand
deep raises the last one."""
