"""Lists of hosts: as ClusterShell reads them, written back as short as they came, and refused in a line."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop.fleet.targets import by_names
from gputop.stream.reach.hosts import MOST_HOSTS, expand, fold, read
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


@pytest.mark.parametrize("examples", [200, pytest.param(600, marks=pytest.mark.soak)])
def test_lists_mean_what_they_mean_to_clustershell(examples: int) -> None:
    settings(max_examples=examples, deadline=None, database=None)(given(lists())(means_the_same))()


def means_the_same(text: str) -> None:
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


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node01-16", [f"node{i:02}" for i in range(1, 17)]), ("gpu7-9", ["gpu7", "gpu8", "gpu9"]),
        ("n098-101.lab.example", [f"n{i:03}.lab.example" for i in range(98, 102)]), ("ana@n1-2,b", ["ana@n1", "ana@n2", "b"]),
        ("rack1node1-2", ["rack1node1", "rack1node2"]), ("node[01-02]", ["node01", "node02"]),
        *((name, [name]) for name in (
            "node-1", "gpu-a100-2", "ip-10-0-12-34", "node1-16", "node16-01", "node7-7", "a-b", "192.168.1.10-20", "fe80::1-2", "n1-2x",
            "dgx-a100-01", "node01-", "-".join(["x1"] * 4),
        )),
        ("rack01-[02]", ["rack01-02"]), ("node1-2 " * 3, ["node1", "node2"]),
    ],
)  # fmt: skip
def test_a_typed_range_needs_no_brackets(text: str, hosts: list[str]) -> None:
    assert expand(text, typed=True) == hosts
    assert [target.host for target in by_names(text, None)] == hosts


def test_what_a_file_or_slurm_names_is_a_name(tmp_path: Path) -> None:
    assert expand("rack01-16") == ["rack01-16"]
    (tmp_path / "hosts").write_text("rack01-16\n")
    assert read(str(tmp_path / "hosts")) == ["rack01-16"]
    with pytest.raises(UserError, match="more than 4096"):
        expand("n0001-9999", typed=True)


LONG = {
    "brackets that do not match": "[" * (1 << 20), "commas": "a," * (1 << 19), "one range": f"n[{'1,' * (1 << 19)}1]",
    "pairs": "a[1]" * (1 << 18), "twos": "n[1-2]" * 170_000, "names": ",".join(f"n{i % 4000}" for i in range(160_000)),
    "spaces in brackets": f"n[{' ' * (1 << 20)}1]", "the same range": "node[1-4000]," * 70_000, "lines": "\n" * (1 << 20),
    "many ranges": ",".join(f"node[1-{2000 - i % 1000}]" for i in range(65_000)), "typed": "n10-99," * 140_000,
    "typed ranges": ",".join(f"n{i:03}-999" for i in range(100, 999)) * 80, "one name": "a" * (1 << 20), "digits": "1" * (1 << 20),
    "slots": "".join(f"a:{i}\n" for i in range(140_000)), "colons": ":" * (1 << 20), "dashes": "n1-" * 340_000, "dots": "a1-2." * 200_000,
}  # fmt: skip


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_megabyte_is_read_or_refused_within_a_second(text: str, tmp_path: Path) -> None:
    text = text[: 1 << 20]
    path = tmp_path / "hosts"
    path.write_text(text)
    for work in (lambda: expand(text), lambda: expand(text, typed=True), lambda: read(str(path))):
        began_s = time.process_time()
        with suppress(UserError):
            work()
        assert time.process_time() - began_s < 3.0, "a quiet machine takes a third of a second"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_of_another_editor_is_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes("node1\r\nnöde2 slots=4\r\n".encode(encoding))
    assert read(str(path)) == ["node1", "nöde2"]


INVENTORIES = {
    "a YAML inventory": (
        "all:\n  hosts:\n    node1:\n", "---\nnodes: [a, b]\n", "- node1\n- node2\n", "# ours\nhosts: a, b\n", "all:  # x\n",
    ),
    "an INI inventory": ("[gpus]\nnode1\n", "node0\n[all:vars]\nansible_user=x\n"),
    "a JSON inventory": ('{"all": {"hosts": ["a"]}}\n', '[\n"a"\n]\n', '["a", "b"]\n'),
}  # fmt: skip


@pytest.mark.parametrize(("what", "text"), [(what, text) for what, texts in INVENTORIES.items() for text in texts])
def test_an_inventory_is_refused_by_name(what: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(text, encoding="utf-8-sig")
    with pytest.raises(UserError, match=f"{what}; gputop reads one host a line"):
        read(str(path))


def test_bytes_that_are_no_text_are_no_list(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"node1\n\xff\xfa\x80")
    with pytest.raises(UserError, match="no text in UTF-8"):
        read(str(path))


def test_every_list_that_is_to_be_typed_is_quoted_for_zsh() -> None:
    root = Path(__file__).parent.parent.parent
    own = root / "gputop"
    pages = [root / "README.md", root / "CHANGELOG.md", *(root / "docs").glob("*.md"), *own.rglob("*.py"), *own.rglob("*.md")]
    assert len(pages) > 100
    bare = re.compile(r"--host[ =](?!')\S*\[\d")
    assert [f"{page.name}: {found[0]}" for page in pages for found in bare.finditer(page.read_text(encoding="utf-8"))] == []
