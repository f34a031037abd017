"""Many nodes by one link: a relay on a login node, and what the viewer learns through it. The ``ssh`` of tests stands for both hops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputop.fleet.asking import Answer
from gputop.fleet.links import CONNECTING, DOWN, MISSING, NEWER, UP, NodeState
from gputop.fleet.relay import Relayed, Told
from gputop.fleet.summary import Node, Summary
from gputop.model.frame import Frame, Header, Stack
from gputop.recording.format import KIND_HEADER, KIND_PASSED, KIND_TOLD, MAGIC, pack
from gputop.recording.reader import Recording
from gputop.stream.reach import Target
from gputop.system.errors import UserError
from tests.fleet.fakes import FakeSsh, ssh
from tests.wait import PATIENCE_S, until

assert ssh  # a fixture
RELAY = f'exec {sys.executable} -m gputop "$@"'
SAMPLE = Path(__file__).parent.parent.parent / "gputop" / "data" / "sample.gputop"


class Viewer:
    """What a screen does, without one."""

    def __init__(self, links: Relayed) -> None:
        self.links = links

    def wait(self, host: str, state: str, within_s: float = 20.0) -> NodeState:
        until(lambda: self.links.poll()[host].state == state, within_s)
        return self.links.poll()[host]

    def answer(self, number: int) -> bytes:
        found: list[Answer] = []
        until(lambda: found.extend(one for _, one in self.links.answers() if one.id == number) or (found and not found[-1].more))
        assert [one.error for one in found] == [""] * len(found)
        return b"".join(one.data for one in found)


@pytest.fixture
def viewer(ssh: FakeSsh, request: pytest.FixtureRequest) -> Iterator[Viewer]:
    """Through a relay to hosts a, b …, as many as the test's marker says."""
    ssh.says("login", RELAY)
    links = Relayed([Target(host) for host in request.param], Target("login"), ["--no-ebpf"])
    yield Viewer(links)
    links.close()


@pytest.mark.parametrize("viewer", [["good", "said", "none", "newer", "refused"]], indirect=True)
def test_each_host_has_the_state_that_it_has_from_the_relay(ssh: FakeSsh, viewer: Viewer) -> None:
    (ssh.folder / "newer.data").write_bytes(MAGIC + pack(KIND_HEADER, msgspec.msgpack.encode({"major": 99})))
    ssh.summary(Summary(host="another", unix_ns=time.time_ns(), node=Node(cpus=64)))
    ssh.says("good")
    ssh.says("said", "printf 'ssh: connect to host said: No route \\033[2Jto host\\n' >&2; exit 255")
    ssh.says("none", "echo 'sh: gputop: not found' >&2; exit 127")
    ssh.says("newer", 'cat "$D/newer.data"; sleep 60')
    ssh.says("refused", "exec sleep 60")
    assert {node.state for node in viewer.links.poll().values()} == {CONNECTING}
    good = viewer.wait("good", UP)
    assert good.summary is not None
    assert (good.host, good.summary.node.cpus, good.notes[:1]) == ("good", 64, ("judged by another gputop",))
    assert viewer.wait("said", DOWN).reason == "ssh: connect to host said: No route ·[2Jto host"
    assert viewer.wait("none", MISSING).reason.startswith("sh: gputop: not found: install it")
    assert "update gputop" in viewer.wait("newer", NEWER).reason
    states = viewer.links.poll()
    assert states["refused"].state == CONNECTING
    assert states["good"].state == UP
    until(lambda: viewer.links.poll()["said"].next_s is not None)  # while it is tried there is no next time
    assert states["good"].age_s is not None
    assert states["good"].age_s < 2.0


@pytest.mark.parametrize("viewer", [["played", "here"]], indirect=True)
def test_frames_stacks_and_recordings_come_through_it(ssh: FakeSsh, viewer: Viewer, tmp_path: Path) -> None:
    ssh.says("played", f"exec {sys.executable} -m gputop collect --summary --from {SAMPLE}")
    ssh.says("here", RELAY)  # a node is this machine
    links, taken = viewer.links, {"played": list[Header | Frame](), "here": list[Header | Frame]()}
    links.tap("played", taken["played"].append)  # as a recorder does: before it is up
    viewer.wait("here", UP, 30.0)
    links.tap("here", taken["here"].append)  # as a screen does
    links.ask("here", "frames", back_s=600.0)
    stacks = msgspec.msgpack.decode(viewer.answer(links.ask("here", "stacks", pids=[os.getpid()])), type=list[Stack])
    assert {stack.pid for stack in stacks} == {os.getpid()}
    for host, items in taken.items():
        until(lambda items=items: links.poll() and len(items) > 4)
        assert isinstance(items[0], Header), host
        assert next(item for item in items if isinstance(item, Frame)).key, "who begins to read needs all"
    path = tmp_path / "saved.gputop"
    path.write_bytes(viewer.answer(links.ask("played", "save")))
    with Recording(str(path)) as recording:
        assert recording.end_ns > recording.start_ns
    links.ask("here", "frames", back_s=-1.0)
    refused = links.ask("here", "sing")
    until(lambda: [one for _, one in links.answers() if one.id == refused and "no question" in one.error])


@pytest.mark.parametrize("viewer", [["good"]], indirect=True)
def test_a_relay_that_goes_is_told_on_every_row_and_knows_its_taps_when_it_is_back(ssh: FakeSsh, viewer: Viewer) -> None:
    ssh.says("good", 'cat "$D/header"; while cat "$D/summary"; do sleep 0.2; done')  # ends with its relay
    ssh.says("login", f'echo $$ > "$D/relay"; {RELAY}')
    taken: list[Header | Frame] = []
    viewer.links.tap("good", taken.append)
    viewer.wait("good", UP)
    until(lambda: viewer.links.poll() and taken)
    os.kill(int((ssh.folder / "relay").read_text()), 9)
    gone = viewer.wait("good", DOWN)
    assert gone.reason.startswith("login: ")
    assert gone.summary is not None, "the last one stays"
    viewer.wait("good", UP)
    until(lambda: viewer.links.poll() and len(taken) > 1)


ODD = {
    "no gputop there": ("echo 'sh: gputop: not found' >&2; exit 127", MISSING, "login: sh: gputop: not found"),
    "old": ("echo 'gputop collect: error: unrecognized arguments: --host a' >&2; exit 2", DOWN, "too old to be a relay"),
    "no state": ('cat "$D/header" "$D/told"; sleep 60', DOWN, "its relay cannot be read"),
    "made up": ('cat "$D/header" "$D/made"; sleep 60', DOWN, "says what means nothing"),
    "no summary": ('cat "$D/header" "$D/bad"; sleep 60', DOWN, "a summary cannot be read"),
}


@pytest.mark.parametrize(("script", "state", "reason"), ODD.values(), ids=ODD)
def test_what_is_wrong_with_the_relay_is_a_line(ssh: FakeSsh, script: str, state: str, reason: str) -> None:
    encode = msgspec.msgpack.encode
    (ssh.folder / "told").write_bytes(pack(KIND_TOLD, b"\xc1garbage"))
    (ssh.folder / "made").write_bytes(pack(KIND_TOLD, encode(Told("a", "dancing"))))
    (ssh.folder / "bad").write_bytes(pack(KIND_PASSED, encode(["x", b"x"])) + pack(KIND_TOLD, encode(Told("a", UP, summary=b"garbage"))))
    ssh.says("login", script)
    links = Relayed([Target("a")], Target("login"))
    try:
        node = Viewer(links).wait("a", state)
        assert reason in node.reason
        assert node.reason.isprintable()
    finally:
        links.close()
    with pytest.raises(UserError, match="no name of a machine"):
        Relayed([Target("-oProxyCommand=x")], Target("login"))


def test_the_command_reads_all_through_it_and_leaves_no_ssh(ssh: FakeSsh) -> None:
    ssh.says("login", RELAY)
    ssh.says("node01")
    ssh.says("node02", "exit 255")
    command = [sys.executable, "-m", "gputop", "--host", "node[01-02]", "--through", "login", "--once", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    told: dict[str, Any] = json.loads(done.stdout)
    assert [(node["host"], node["state"]) for node in told["nodes"]] == [("node01", "up"), ("node02", "silent")]
    until(lambda: not _ssh_of(ssh.folder))


def _ssh_of(folder: Path) -> list[str]:
    """Processes that run for hosts of this test."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if str(folder).encode() in path.read_bytes() and path.parent.name != str(os.getpid()):
                found.append((path.parent / "cmdline").read_text())
    return found
