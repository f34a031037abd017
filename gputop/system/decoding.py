"""What decoding raises where the bytes are not what they should be."""

from __future__ import annotations

import msgspec

BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of msgspec, json, tomllib and `bytes.decode` for bytes that somebody else wrote: nesting a thousand deep raises the last one."""
