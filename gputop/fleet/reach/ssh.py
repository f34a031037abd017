"""The system's ssh: with its ProxyJump, Kerberos, agent, ControlMaster and known hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.fleet.hosts import check

if TYPE_CHECKING:
    from gputop.fleet.reach import Target

LINES = False
OPTIONS = (
    "-oBatchMode=yes",  # it asks nobody for a password: there may be no terminal
    "-oConnectTimeout=5",  # s; a dead host is told after that
    "-oServerAliveInterval=2", "-oServerAliveCountMax=3",  # s, and so many in a row: a host that vanishes is told after 6 to 8 s
)  # fmt: skip


def argv(target: Target, words: tuple[str, ...]) -> list[str]:
    """The words go through a shell there, so they must need no quotes."""
    check(target.host)
    return ["ssh", *OPTIONS, target.host, "gputop", *words]
