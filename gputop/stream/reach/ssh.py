"""The system's ssh: with its ProxyJump, Kerberos, agent, ControlMaster and known hosts.

What ~/.ssh/config sets for a person's shell is taken back, for a stream comes through a pipe.
"""

from __future__ import annotations

from gputop.stream.reach.hosts import check

LINES = False
OPTIONS = (
    "-oBatchMode=yes",  # never ask for a password: there may be no terminal
    "-oConnectTimeout=5",  # s after which a dead host is reported
    "-oServerAliveInterval=2", "-oServerAliveCountMax=3",  # s, and so many in a row: a host that vanishes is reported after 6 to 8 s
    "-T",  # no terminal there, which would change the bytes (RequestTTY)
    "-oRemoteCommand=none",  # such as tmux; ssh knows the option since 7.6 (2017)
    "-oClearAllForwardings=yes", "-x",  # ports that another ssh has already, and an X server that is not there (ExitOnForwardFailure)
    "-oPermitLocalCommand=no", "-oVisualHostKey=no",  # they print into the stream, or in place of the reason
)  # fmt: skip


def argv(host: str, within: str, words: tuple[str, ...]) -> list[str]:  # noqa: ARG001 - as every way
    """The words go through a shell there, so they must need no quotes."""
    check(host)
    return ["ssh", *OPTIONS, host, "gputop", *words]
