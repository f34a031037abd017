"""`gputop.mark`: a marker in every gputop that watches this machine."""

from __future__ import annotations

from gputop.stream.marking import send_mark


def mark(text: str) -> int:
    """Set a marker in the live views and recordings of this user on this machine, as `gputop mark` does; how many took it.

    It waits 0.5 s at most, for a collector that is stopped, and does not mind if none runs. ``ValueError`` for an empty text.
    """
    if not text.strip():
        raise ValueError("the marker is empty")
    return send_mark(text.strip().encode(errors="replace").decode())[0]
