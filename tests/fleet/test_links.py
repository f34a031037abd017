"""Links to nodes: what a row knows when all is well, and when it is not. One host's trouble is nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from gputop.fleet import link as link_module
from gputop.fleet.asking import NodeAnswer, pack_answer
from gputop.fleet.link import CONNECTING, DOWN, MISSING, NEWER, REFUSED, SILENT, UP
from gputop.fleet.links import Links
from gputop.fleet.summary import MOST_BYTES, Node, Summary
from gputop.model.frame import Frame, Header, Stack
from gputop.recording.format import KIND_HEADER, KIND_SUMMARY, MAGIC, pack
from gputop.recording.reader import Recording
from gputop.stacks.nccl import unpack_report
from gputop.stream.reach import Target
from gputop.system.errors import UserError
from tests.fleet.fakes import SPEAK, FakeSsh, Open, link, ssh, wait_for
from tests.stacks import ras
from tests.wait import PATIENCE_S, at_this_load, until

assert link  # a fixture
assert ssh


def test_a_node_speaks_for_its_link_whatever_it_calls_itself(ssh: FakeSsh, link: Open) -> None:
    ssh.summary(Summary(host="the other node", unix_ns=time.time_ns(), node=Node(cpus=64)))
    ssh.says("node1")
    links = link("node1")
    node = wait_for(links, "node1", lambda node: node.state == UP)
    assert (node.host, node.reason, node.next_s) == ("node1", "", None)
    assert node.summary is not None
    assert node.summary.node.cpus == 64
    assert node.notes == ("judged by another gputop",)


def test_a_banner_before_the_stream_is_passed_over(ssh: FakeSsh, link: Open) -> None:
    ssh.says("node1", f"echo Welcome to node1; echo motd >&2; {SPEAK}")
    wait_for(link("node1"), "node1", lambda node: node.state == UP)


SAID = {
    "no gputop": ("echo 'sh: gputop: not found' >&2; exit 127", MISSING, "gputop: not found: install it"),
    "text": ("echo I am a coffee machine", DOWN, "begins with 'I am a coffee machine'"),
    "endless text": ("yes coffee", DOWN, "no gputop stream"),
    "zeros behind a header": ('cat "$D/header" /dev/zero', DOWN, "no stream of gputop"),
    "large summary": ('cat "$D/header" "$D/large"; sleep 60', DOWN, "larger than 256 KiB"),
    "huge block": ('cat "$D/header" "$D/huge"; sleep 60', DOWN, "no stream of gputop"),
    "odd summary": ('cat "$D/header" "$D/odd"; sleep 60', DOWN, "cannot be read"),
    "newer format": ('cat "$D/newer"; sleep 60', NEWER, "update gputop"),
    "unknown host": ("echo 'ssh: Could not resolve hostname a: Name or service not known' >&2; exit 255", DOWN, "Could not resolve"),
    "escape sequences": ("printf 'go \\033[2Jaway\\n' >&2; exit 255", DOWN, "go ·[2Jaway"),
    "silence at once": ("exit 0", DOWN, "ended with exit code 0"),
    "killed": ("kill -9 $$", DOWN, "killed by signal 9"),
}


def test_what_is_wrong_with_a_node_is_told_in_a_line_and_costs_no_other(ssh: FakeSsh, link: Open) -> None:
    large = pack(KIND_SUMMARY, b"\x28\xb5\x2f\xfd\xa0" + (MOST_BYTES + 1).to_bytes(4, "little"))
    (ssh.folder / "large").write_bytes(large)
    (ssh.folder / "odd").write_bytes(pack(KIND_SUMMARY, os.urandom(1000)))
    (ssh.folder / "huge").write_bytes(pack(KIND_SUMMARY, bytes(8 << 20)))
    (ssh.folder / "newer").write_bytes(MAGIC + pack(KIND_HEADER, msgspec.msgpack.encode({"major": 99})))
    hosts = [f"node{i}" for i in range(len(SAID))]
    for host, (script, _, _) in zip(hosts, SAID.values(), strict=True):
        ssh.says(host, script)
    ssh.says("good")
    links = link(*hosts, "good")
    for host, (_, state, reason) in zip(hosts, SAID.values(), strict=True):
        node = wait_for(links, host, lambda node, state=state: node.state == state)
        assert reason in node.reason
        assert node.reason.isprintable()
        assert len(node.reason) < 200
    assert wait_for(links, "good", lambda node: node.state == UP).age_s is not None


def test_sshd_may_refuse_twice_before_it_is_told(ssh: FakeSsh, link: Open) -> None:
    words = "kex_exchange_identification: Connection closed by remote host"
    ssh.says("later", f'echo x >> "$D/tries"; [ $(wc -l < "$D/tries") -ge 3 ] || {{ echo {words} >&2; exit 255; }}; {SPEAK}')
    ssh.says("never", f"echo {words} >&2; exit 255")
    links = link("later", "never")
    seen = set[str]()

    def both() -> bool:
        states = links.poll()
        seen.add(states["later"].state)
        return states["later"].state == UP and states["never"].state == REFUSED

    until(both)
    assert seen == {CONNECTING, UP}
    assert "jump host" in links.poll()["never"].reason


def test_a_node_that_says_nothing_is_silent_and_one_that_ends_comes_back(ssh: FakeSsh, link: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SILENT_S", 0.6)
    ssh.says("quiet", 'cat "$D/header" "$D/summary"; sleep 60')
    ssh.says("ends", 'cat "$D/header" "$D/summary"; sleep 0.1; echo "Timeout, server ends not responding." >&2; exit 255')
    links = link("quiet", "ends")
    node = wait_for(links, "quiet", lambda node: node.state == SILENT)
    assert node.reason.startswith("no answer for")
    gone = wait_for(links, "ends", lambda node: node.state == DOWN)
    assert gone.reason == "Timeout, server ends not responding."
    assert gone.summary is not None, "the last one stays"
    ssh.says("ends")
    wait_for(links, "ends", lambda node: node.state == UP)


def test_one_that_hangs_is_asked_anew(ssh: FakeSsh, link: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "ANSWER_S", 0.5)
    ssh.says("hangs", "exec sleep 60")
    links = link("hangs")
    assert "no answer within" in wait_for(links, "hangs", lambda node: node.state == DOWN).reason
    monkeypatch.setattr(link_module, "ANSWER_S", PATIENCE_S)
    ssh.says("hangs")
    wait_for(links, "hangs", lambda node: node.state == UP)


def test_few_connect_at_once_and_all_are_up(ssh: FakeSsh, link: Open) -> None:
    hosts = [f"n{i}" for i in range(20)]
    for host in hosts:
        ssh.says(host, f'touch "$D/at.{host}"; ls "$D"/at.* | wc -l >> "$D/most"; sleep 0.2; rm "$D/at.{host}"; {SPEAK}')
    links = link(*hosts, fan_out=3)
    until(lambda: all(node.state == UP for node in links.poll().values()))
    assert max(map(int, (ssh.folder / "most").read_text().split())) <= 3


def test_clocks_that_differ_are_told(ssh: FakeSsh, link: Open) -> None:
    ssh.summary(Summary(unix_ns=time.time_ns() - 2_500_000_000))
    ssh.says("late", 'cat "$D/header" "$D/summary"; sleep 60')
    node = wait_for(link("late"), "late", lambda node: node.state == UP)
    assert node.skew_s == pytest.approx(2.5, abs=at_this_load(1.5))
    assert any(note.startswith("clock ") and note.endswith("s behind") for note in node.notes)


def test_a_gputop_without_summaries_is_judged_here(ssh: FakeSsh, link: Open) -> None:
    old = "gputop collect: error: unrecognized arguments: --summary"
    gputop = f"exec {sys.executable} -m gputop"
    ssh.says("old", f'case "$*" in *--summary*) echo "{old}" >&2; exit 2;; esac; {gputop} "$@"')
    links = link("old", flags=["--no-ebpf"])
    node = wait_for(links, "old", lambda node: node.state == UP and node.summary.node.cpu is not None)
    assert node.notes == ("judged here: update gputop there",)
    links.ask("old", "stacks")
    (answered,) = answers(links, 1)
    assert "too old" in answered.error


def test_wrong_names_are_told_before_anything_starts(link: Open) -> None:
    with pytest.raises(UserError, match="no name of a machine"):
        link("good", "-oProxyCommand=touch /tmp/x")


def test_no_ssh_here(tmp_path: Path, link: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert wait_for(link("node1"), "node1", lambda node: node.state == DOWN).reason == "cannot run ssh: No such file or directory"


def answers(links: Links, count: int) -> list[NodeAnswer]:
    """So many answers, without pieces that others follow."""
    found: list[NodeAnswer] = []
    until(lambda: found.extend(answer for _, answer in links.answers()) or sum(not one.more for one in found) >= count)
    return found


def test_a_node_answers() -> None:
    links = Links([Target("here", "local")], flags=["--no-ebpf"])
    try:
        links.ask("here", "summary")
        assert answers(links, 1)[0].error, "it is not up yet"
        wait_for(links, "here", lambda node: node.state == UP and node.summary.node.cpu is not None)
        taps: list[Header | Frame] = []
        links.tap("here", taps.append)
        links.ask("here", "frames")
        until(lambda: len(taps) > 5)
        assert isinstance(taps[0], Header)
        assert isinstance(taps[1], Frame)
        assert taps[1].key, "who begins to read needs all"
        links.ask("here", "frames", back_s=-1)
        at_unix_s = time.time() + 0.5
        asked = links.ask("here", "stacks", pids=[os.getpid()], at_unix_s=at_unix_s)
        (answer,) = [one for one in answers(links, 3) if one.id == asked]
        assert answer.unix_s >= at_unix_s
        stacks = msgspec.msgpack.decode(answer.data, type=list[Stack])
        assert {stack.pid for stack in stacks} == {os.getpid()}
        with ras.listening(ras.speaks(ras.LATE)) as port:
            env = {**os.environ, "WORLD_SIZE": "32", "NCCL_RAS_ADDR": f"localhost:{port}"}
            with subprocess.Popen(["sleep", "60"], env=env) as rank:
                try:
                    until(lambda: b"NCCL_RAS_ADDR" in Path(f"/proc/{rank.pid}/environ").read_bytes())
                    links.ask("here", "nccl", pids=[rank.pid])
                    report = unpack_report(answers(links, 1)[0].data)
                finally:
                    rank.kill()
        assert report is not None
        assert [one.rank for one in report.ranks] == [17, 30]
        links.ask("here", "sing")
        assert "no question: 'sing'" in answers(links, 1)[0].error
    finally:
        links.close()


def test_a_node_saves_its_last_minutes(tmp_path: Path) -> None:
    links = Links([Target("here", "local")], flags=["--no-ebpf"])
    try:
        wait_for(links, "here", lambda node: node.state == UP and node.summary.node.cpu is not None)
        links.ask("here", "save")
        pieces = answers(links, 1)
        assert [one.error for one in pieces] == [""] * len(pieces)
        path = tmp_path / "a.gputop"
        path.write_bytes(b"".join(one.data for one in pieces))
        recording = Recording(str(path))
        assert recording.end_ns > recording.start_ns
    finally:
        links.close()




def test_who_takes_frames_gets_them_from_a_link_that_is_made_anew(ssh: FakeSsh, link: Open) -> None:
    """The first ends at once; the second is asked without anybody's doing."""
    ssh.says("node1", 'cat "$D/header" "$D/summary"; read line; exit 3')
    links = link("node1")
    wait_for(links, "node1", lambda node: node.state == UP)
    taken: list[Header | Frame] = []
    links.tap("node1", taken.append)
    assert [type(item) for item in taken] == [Header]
    ssh.says("node1", 'cat "$D/header" "$D/summary"; read line; echo "$line" > "$D/asked"; sleep 60')
    links.ask("node1", "summary")
    until(lambda: (ssh.folder / "asked").exists() and '"frames"' in (ssh.folder / "asked").read_text())
    assert [type(item) for item in taken] == [Header, Header]


def test_a_node_that_sends_thousands_of_summaries_and_answers_keeps_nobody_busy(ssh: FakeSsh, link: Open) -> None:
    (ssh.folder / "answer").write_bytes(pack_answer(NodeAnswer(7, "save", data=bytes(1 << 20), more=True)))
    ssh.says("floods", 'cat "$D/header"; while :; do for i in 1 2 3 4 5 6 7 8; do cat "$D/summary" "$D/answer"; done; done')
    ssh.says("good")
    links = link("floods", "good")
    wait_for(links, "good", lambda node: node.state == UP)
    wait_for(links, "floods", lambda node: node.state == UP)
    assert links.answers() == [], "nobody has asked"
    answer = pack_answer(NodeAnswer(1, "save", data=bytes(1 << 20), more=True))
    (ssh.folder / "answer").write_bytes(answer)
    assert links.ask("floods", "save") == 1
    node = wait_for(links, "floods", lambda node: node.state == DOWN)
    assert node.reason == "it answers with more than 64 MiB"
    assert links.poll()["good"].state == UP
    assert links.poll()["good"].age_s <= at_this_load(1.5)
