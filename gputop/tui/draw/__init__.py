"""The parts of the screen as text: pure functions from what is known to lines of spans, one file a part. No textual here."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[str, str]
"""Text and what it means; `gputop.tui.palette` gives meanings their colour."""
Line = Sequence[Span]
