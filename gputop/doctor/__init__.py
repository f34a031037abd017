"""What of gputop works on this machine: each check says OK, or what is missing and the command that fixes it.

`gputop.commands.doctor` runs `gpu`, `host` and `probes`; `bundle` packs the findings for a bug report, `mask` takes the names out.
"""

from __future__ import annotations

from msgspec import Struct


class Check(Struct, frozen=True):
    """One finding. ``state``: ``ok``, ``limited`` (works, with less) or ``missing``."""

    id: str
    title: str
    state: str
    detail: str
    remedy: str = ""  # the command or step that fixes it, empty where nothing is to be fixed
    required: bool = False  # gputop cannot watch GPUs without it


def works(checks: list[Check]) -> bool:
    """Whether gputop can watch GPUs here."""
    return not any(check.required and check.state == "missing" for check in checks)
