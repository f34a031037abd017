"""What of gputop works here: one check per part it rests on, each OK, or what is missing and the command that mends it."""

from __future__ import annotations

from msgspec import Struct


class Check(Struct, frozen=True):
    """One finding. ``state``: ``ok``, ``limited`` (works, with less) or ``missing``."""

    id: str
    title: str
    state: str
    detail: str
    remedy: str = ""
    """The command or step that mends it, empty where there is nothing to mend."""
    required: bool = False
    """The main job, watching GPUs, cannot be done without it."""


def run_all(root: str = "/") -> list[Check]:
    """Every check, in the order in which they are told."""
    from gputop.doctor import gpu, host, probes, terminal

    return [*gpu.checks(root), *host.checks(root), *probes.checks(root), *terminal.checks()]


def works(checks: list[Check]) -> bool:
    """Whether the main job can be done."""
    return not any(check.required and check.state == "missing" for check in checks)
