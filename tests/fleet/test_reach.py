"""Nodes behind a real sshd, each in a network of its own: one that vanishes, one that was never there, and many at once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop.fleet.link import DOWN, SILENT, UP
from gputop.fleet.links import FAN_OUT, Links
from gputop.fleet.summary import Summary, pack_summary
from gputop.model.frame import Header
from gputop.recording.format import pack_header
from gputop.stream.reach import Target
from tests.fleet.sshd import machines, took
from tests.require import require
from tests.wait import PATIENCE_S, at_this_load, until

NODES_PAGE = Path(__file__).parent.parent.parent / "docs" / "nodes.md"
DOCUMENTED = NODES_PAGE.read_text(encoding="utf-8").partition("```ssh\n")[2].partition("```")[0]


def test_a_node_vanishes_and_returns_and_one_on_a_slow_link_goes_on(tmp_path: Path) -> None:
    require("net", "ssh")
    with machines(tmp_path, ["node1", "node2"]) as lab:
        (tmp_path / "client").write_text(f"Host dead\n  HostName 10.213.7.99\n{(tmp_path / 'client').read_text()}")
        links = Links([Target(host) for host in ("node1", "node2", "dead")], flags=["--no-ebpf"])
        gaps: list[float] = []

        def look() -> dict[str, str]:
            states = links.poll()
            gaps.append(states["node2"].age_s or 0.0)
            return {host: one.state for host, one in states.items()}

        try:
            until(lambda: (states := look())["node1"] == states["node2"] == UP)
            until(lambda: links.poll()["node1"].summary.node.cpu is not None)
            assert [links.poll()[host].summary.host for host in ("node1", "node2")] == ["node1", "node2"]
            lab.slow_down("node2", "64kbit")
            gaps.clear()
            lab.link("node1", "down")
            told_s = took(lambda: look()["node1"] in (SILENT, DOWN), PATIENCE_S)
            until(lambda: look()["node1"] == DOWN)
            assert "not responding" in links.poll()["node1"].reason
            assert links.poll()["node1"].summary is not None
            lab.link("node1", "up")
            back_s = took(lambda: look()["node1"] == UP, PATIENCE_S)
            dead = links.poll()["dead"]
            assert (dead.state, dead.summary) == (DOWN, None)
            assert "No route to host" in dead.reason or "timed out" in dead.reason
        finally:
            links.close()
    assert told_s <= at_this_load(8.0)
    assert back_s <= at_this_load(10.0)
    assert max(gaps) <= at_this_load(3.0), "a summary a second, and this machine is busy"


def _speaks(folder: Path) -> str:
    """A gputop that repeats one summary."""
    (folder / "header").write_bytes(pack_header(Header()))
    (folder / "summary").write_bytes(pack_summary(Summary(unix_ns=time.time_ns())))
    return f"#!/bin/sh\ncat {folder}/header; while cat {folder}/summary; do sleep 1; done\n"


@pytest.mark.soak
def test_sixty_four_hosts_behind_one_sshd_at_its_default_limits(tmp_path: Path) -> None:
    require("net", "ssh")
    hosts = [f"n{number:02d}" for number in range(1, 65)]
    wrong: set[str] = set()
    with machines(tmp_path, ["bastion"], aliases=hosts, script=_speaks(tmp_path)):
        links = Links([Target(host) for host in hosts])

        def all_up() -> bool:
            states = links.poll().values()
            wrong.update(f"{one.state}: {one.reason}" for one in states if one.state not in ("connecting", UP))
            return all(one.state == UP for one in states)

        try:
            assert took(all_up, PATIENCE_S) <= at_this_load(20.0)
        finally:
            links.close()
    assert not wrong


@pytest.mark.soak
@pytest.mark.parametrize("is_shared", [False, True])
def test_sixty_four_hosts_behind_a_login_node(tmp_path: Path, is_shared: bool) -> None:
    """By what docs/nodes.md shows for ~/.ssh/config, with the connection to the login node shared and not."""
    require("net", "ssh")
    hosts = [f"node{number:02d}" for number in range(1, 65)]
    jump, _, shared = DOCUMENTED.replace("login01", "login").replace("~/.ssh/%C", f"{tmp_path}/%h").partition("\n\n")
    assert "ProxyJump" in jump
    assert "ControlMaster" in shared
    with machines(tmp_path, ["behind", "login"], aliases=hosts, script=_speaks(tmp_path)):
        client, closed = tmp_path / "client", "Host node-closed\n  HostName 10.213.7.1\n  Port 9"
        client.write_text("\n".join([jump, shared if is_shared else "", closed, client.read_text()]))
        links = Links([Target(host) for host in (*hosts, "node-closed")])
        try:
            until(lambda: all(one.state == UP for one in links.poll().values() if one.host in hosts), 1.5 * PATIENCE_S)
            until(lambda: links.poll()["node-closed"].state == DOWN)
            assert links.poll()["node-closed"].reason.startswith("the jump host does not reach it: ")
        finally:
            links.close()
        came = {name: _logins(tmp_path / name / "log") for name in ("behind", "login")}
    assert came["behind"] == ["10.213.7.2"] * 64, "each came from the login node"
    assert (len(came["login"]) <= FAN_OUT) == is_shared, "who begins before the shared one stands has its own"


def _logins(log: Path) -> list[str]:
    """The address of each login that an sshd accepted."""
    return re.findall(r"Accepted publickey for root from (\S+)", log.read_text())


FOR_A_SHELL = {
    "tmux": "RemoteCommand tmux new -A -s main\n  RequestTTY yes",
    "terminal": "RequestTTY force",
    "forward": "LocalForward 127.0.0.1:1 127.0.0.1:22\n  RemoteForward 1 127.0.0.1:22\n  ExitOnForwardFailure yes\n  ForwardX11 yes",
    "prints": "PermitLocalCommand yes\n  LocalCommand echo connected to %h\n  VisualHostKey yes",
}
"""What people set in ~/.ssh/config for hosts that they log in to."""


def test_settings_for_a_persons_shell_are_taken_back(tmp_path: Path) -> None:
    require("net", "ssh")
    with machines(tmp_path, ["node1"], aliases=list(FOR_A_SHELL)):
        own = "\n".join(f"Host {name}\n  {lines}" for name, lines in FOR_A_SHELL.items())
        (tmp_path / "client").write_text(f"{own}\n{(tmp_path / 'client').read_text()}")
        links = Links([Target(host) for host in FOR_A_SHELL], flags=["--no-ebpf"])
        try:
            until(lambda: all(one.state == UP for one in links.poll().values()))
            assert {one.summary.host for one in links.poll().values() if one.summary} == {"node1"}
        finally:
            links.close()
        for host in FOR_A_SHELL:
            words = [sys.executable, "-m", "gputop", "--host", host, "--once", "--no-ebpf"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            assert (done.returncode, "node1" in done.stdout) == (0, True), done.stderr


def test_a_host_that_refuses_a_login_is_told_in_its_words(tmp_path: Path) -> None:
    """Though its config asks for pictures of keys."""
    require("net", "ssh")
    with machines(tmp_path, ["node1"]):
        (tmp_path / "client").write_text(f"Host node1\n  VisualHostKey yes\n  User nobody\n{(tmp_path / 'client').read_text()}")
        links = Links([Target("node1")])
        try:
            until(lambda: links.poll()["node1"].state == DOWN)
            assert "Permission denied" in links.poll()["node1"].reason
        finally:
            links.close()


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's keys but the test's."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
