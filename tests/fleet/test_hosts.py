"""Lists of hosts: as ClusterShell reads them, written back as short as they came, and refused in a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop.fleet.hosts import MOST_HOSTS, expand, fold, read
from gputop.system.errors import UserError


@st.composite
def ranges(draw: st.DrawFn) -> str:
    """One range: padded or not, with a step or not."""
    width = draw(st.sampled_from([0, 0, 2, 3]))
    first = draw(st.integers(0, 120 if width != 2 else 90))
    last = first + draw(st.integers(0, 9 if width == 2 else 30))
    step = draw(st.sampled_from([1, 1, 1, 2, 3, 50]))
    if width == 0 and last == first:
        return str(first)
    return f"{first:0{width}d}-{last:0{width}d}" + (f"/{step}" if step > 1 else "")


@st.composite
def lists(draw: st.DrawFn) -> str:
    """A list of up to three parts, some of two dimensions."""
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(["node", "gpu-", "n0x", "rack7.", "ana@h"]))
        shape = draw(st.integers(0, 3))
        inside = ",".join(draw(st.lists(ranges(), min_size=1, max_size=2)))
        if shape == 0:
            parts.append(f"{name}{draw(st.integers(0, 30)):0{draw(st.integers(1, 3))}d}")
        elif shape < 3:
            parts.append(f"{name}[{inside}]{draw(st.sampled_from(['', '-ib', '.lab.org']))}")
        else:
            parts.append(f"{name}[{inside}]x[{draw(ranges())}]")
    return ",".join(parts)


@settings(max_examples=2000, deadline=None, database=None)
@given(lists())
def test_lists_mean_what_they_mean_to_clustershell(text: str) -> None:
    hosts = expand(text)
    assert sorted(hosts) == sorted(NodeSet(text))
    assert len(set(hosts)) == len(hosts)
    assert sorted(expand(fold(hosts))) == sorted(hosts)
    assert sorted(NodeSet(fold(hosts))) == sorted(hosts)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node[01-03,18],gpu7", "node01 node02 node03 node18 gpu7"),
        ("n[1-2][4-5]", "n14 n15 n24 n25"),
        ("rack[1-2]node[1-2]", "rack1node1 rack1node2 rack2node1 rack2node2"),
        ("b, a ,b  c", "b a c"),
        ("n[ 1 - 2 , 5 ]", "n1 n2 n5"),
        ("node[1-9/4]", "node1 node5 node9"),
        ("ana@n[1-2],fe80::1%eth0", "ana@n1 ana@n2 fe80::1%eth0"),
        ("[1-2]", "1 2"),
    ],
)
def test_a_list_keeps_its_order_and_each_host_once(text: str, hosts: str) -> None:
    assert expand(text) == hosts.split()


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ("node01 node02 node04 node05 node06", "node[01,02,04-06]"),
        ("node9 node10 node11", "node[9-11]"),
        ("node08 node09 node10", "node[08-10]"),
        ("n1 n01 n2 n02", "n[1,2,01,02]"),
        ("login n3.lab n1.lab n2.lab gpu7", "login,n[1-3].lab,gpu7"),
        ("node node1 node2", "node,node[1,2]"),
        ("a", "a"),
    ],
)
def test_hosts_are_written_short(hosts: str, text: str) -> None:
    assert fold(hosts.split()) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-oProxyCommand=reboot", "no name of a machine"),
        ("ana@-oProxyCommand=reboot", "no name of a machine"),
        ("@node", "no name of a machine"),
        ("node7;reboot", "';'"),
        ("node\x1b[2J", "brackets do not match"),
        ("node\x1b", "'·'"),
        ("$(reboot)", "'$'"),
        ("", "no host in it"),
        (" , ", "no host in it"),
        ("node[1", "brackets do not match"),
        ("node1]", "brackets do not match"),
        ("node[[1-2]]", "brackets do not match"),
        ("node[]", "no range of numbers"),
        ("node[1,]", "no range of numbers"),
        ("node[a-b]", "no range of numbers"),
        ("node[3-1]", "backwards"),
        ("node[1-3/0]", "backwards"),
        ("node[01-100]", "zeros"),
        ("node[1-99999999]", f"more than {MOST_HOSTS}"),
        ("node[1-999999999999999999]", f"more than {MOST_HOSTS}"),
        ("node[1-99999999999999999999999]", "no range"),
        ("a[1-2000]b[1-2000]c[1-2000]", f"more than {MOST_HOSTS}"),
        ("x" * 10_000 + "!", "no name of a machine"),
    ],
)
def test_what_is_no_list_is_refused_in_a_line(text: str, why: str) -> None:
    with pytest.raises(UserError, match="host") as refused:
        expand(text)
    said = str(refused.value)
    assert why in said
    assert refused.value.code == 2
    assert len(said) < 200
    assert said.isprintable()


def test_files_of_pdsh_mpi_and_deepspeed(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    lines = "# the lab", "node[01-02]", "", "worker-1 slots=8 max_slots=8  # Open MPI", "mpich1:16", "ana@a, b", "old 4\r", "fe80::1"
    path.write_text("\n".join(lines))
    assert read(str(path)) == ["node01", "node02", "worker-1", "mpich1", "ana@a", "b", "old", "fe80::1"]


def test_a_wrong_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    for text, why in [("node1\n-oNo\n", "line 2: --host '-oNo'"), ("# none\n", "names no host"), ("x\n" * (1 << 20), "no file of hosts")]:
        path.write_text(text)
        with pytest.raises(UserError, match="hosts") as refused:
            read(str(path))
        assert why in str(refused.value)
    with pytest.raises(UserError, match="No such file"):
        read(str(tmp_path / "none"))
