"""Errors that decoding raises for wrong bytes."""

from __future__ import annotations

import msgspec

BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of msgspec, json, tomllib and `bytes.decode` for bytes of another program: nesting a thousand deep raises the last one."""
