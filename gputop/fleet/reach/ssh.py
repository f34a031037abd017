"""The system's ssh: with its ProxyJump, Kerberos, agent, ControlMaster and known hosts."""

from __future__ import annotations

from gputop.fleet.hosts import check

LINES = False
OPTIONS = (
    "-oBatchMode=yes",  # it asks nobody for a password: there may be no terminal
    "-oConnectTimeout=5",  # s; a dead host is told after that
    "-oServerAliveInterval=2", "-oServerAliveCountMax=3",  # s, and so many in a row: a host that vanishes is told after 6 to 8 s
)  # fmt: skip


def argv(host: str, within: str, words: tuple[str, ...]) -> list[str]:  # noqa: ARG001 - as every way
    """The words go through a shell there, so they must need no quotes."""
    check(host)
    return ["ssh", *OPTIONS, host, "gputop", *words]
