"""The formats that a recording is written in: a module each with ``write(recording, output, start_ns, end_ns)``, and its name in `FORMATS`.

``write`` raises UserError, or OSError where the output cannot be written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

FORMATS = ("csv", "sqlite", "parquet", "perfetto")


def writer(form: str) -> Callable[..., None]:
    """The ``write`` of a format; only its module is imported."""
    found: Callable[..., None] = importlib.import_module(f"gputop.tables.exports.{form}").write
    return found
