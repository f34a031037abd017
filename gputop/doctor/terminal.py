"""What the terminal can draw."""

from __future__ import annotations

import os

from gputop.doctor import Check
from gputop.system.console import charset, takes_unicode


def checks() -> list[Check]:
    """Colours and Unicode, by what the environment says of the terminal."""
    return [_colours(), _unicode()]


def _colours() -> Check:
    term, depth = os.environ.get("TERM", ""), os.environ.get("COLORTERM", "")
    if os.environ.get("NO_COLOR"):
        return Check("colours", "colours", "ok", "off: NO_COLOR is set")
    if term in ("", "dumb"):
        return Check("colours", "colours", "limited", f"TERM is {term or 'not set'}", "export TERM=xterm-256color")
    if depth in ("truecolor", "24bit") or "direct" in term:
        return Check("colours", "colours", "ok", f"{term}, 24-bit")
    if "256color" in term:
        return Check("colours", "colours", "ok", f"{term}, 256 colours")
    return Check("colours", "colours", "limited", f"{term}: 16 colours or fewer", "export TERM=xterm-256color")


def _unicode() -> Check:
    if takes_unicode():
        return Check("unicode", "Unicode", "ok", "UTF-8")
    return Check("unicode", "Unicode", "limited", f"the locale is {charset()}, so ASCII is drawn", "export LC_ALL=C.UTF-8, or --no-ascii")
