"""NCCL's own report of a job that hangs: read from its RAS port, whatever answers there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop.stacks import nccl
from gputop.stacks.nccl import ask, read_report, told
from gputop.system.errors import Unavailable
from tests.stacks import ras
from tests.wait import at_this_load, until


@contextmanager
def trainer(size: int = 32, **env: str) -> Iterator[int]:
    """The pid of a process with these variables."""
    env = {"WORLD_SIZE": str(size), **env}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **env}) as process:
        try:
            until(lambda: all(name.encode() in Path(f"/proc/{process.pid}/environ").read_bytes() for name in env))
            yield process.pid
        finally:
            process.kill()


@contextmanager
def job(serve: object, host: str = "127.0.0.1", name: str = "", size: int = 32) -> Iterator[int]:
    with ras.listening(serve, host) as port, trainer(size, NCCL_RAS_ADDR=f"{name or host}:{port}") as pid:  # type: ignore[arg-type]
        yield pid


def test_who_has_launched_fewer_collectives_is_named() -> None:
    with job(ras.speaks(ras.LATE, 7)) as pid:
        found = ask([pid])
    assert found is not None
    assert (found.version, found.processes, found.gpus) == ("2.27.3", 32, 32)
    assert [(one.rank, one.size, one.why, one.pid, one.node) for one in found.ranks] == [
        (17, 32, "launched 6649 of 6650 AllReduce", 483074, "172.16.64.211"),
        (30, 32, "launched 0 of 6650 AllReduce", 483079, "172.16.64.213"),
    ]
    lines = [line.text for line in told(found)]
    assert lines[0] == (
        "NCCL 2.27.3: rank 17 of 32 (process 483074 on 172.16.64.211): launched 6649 of 6650 AllReduce, and 1 rank more"
    )
    assert lines[1] == "  #0-0 (27a079b828ff1a75) MISMATCH"


def test_ranks_that_do_not_answer_and_an_early_wording() -> None:
    assert [(one.rank, one.why) for one in read_report(ras.GONE).ranks] == [(29, "does not answer NCCL")]
    assert [(one.rank, one.why) for one in read_report(ras.EARLY).ranks] == [
        (2, "launched 6649 of 6650 collectives"), (4, "launched 6649 of 6650 collectives"), (9, "has status ABORT"),
    ]  # fmt: skip
    healthy = read_report(ras.HEALTHY)
    assert (healthy.ranks, healthy.lines) == ([], [])
    assert told(healthy)[0].text == "NCCL 2.27.3: all ranks answer, and have launched the same collectives"


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "0.0.0.0"), ("127.0.0.1", "localhost"), ("::1", "[::]"), ("::1", "localhost")])
def test_it_is_asked_on_the_loopback_interface(host: str, name: str) -> None:
    with job(ras.speaks(ras.HEALTHY), host, name) as pid:
        found = ask([pid])
    assert found is not None
    assert found.ranks == []


ODD = {
    "another program": (ras.garbage, "another program listens on NCCL's port; it sent 'HTTP/1.1 400 ·[2J"),
    "endless": (ras.endless, "larger than 1 MiB"),
    "silent": (ras.silent, "does not answer in time"),
    "stops in the midst": (ras.stalled, "does not answer in time"),
    "no report": (ras.speaks("what is this\n"), "cannot be read"),
    "another job": (ras.speaks(ras.LATE), "reports a job of 32 ranks there, not of 8"),
}


@pytest.mark.parametrize(("serve", "why"), ODD.values(), ids=ODD)
def test_what_is_no_report_is_a_line_and_takes_no_long(serve: object, why: str) -> None:
    began_s = time.monotonic()
    with job(serve, size=8) as pid:
        found = ask([pid], timeout_s=0.3)
    assert found is not None
    assert why in found.problem
    assert all(line.text.isprintable() for line in told(found))
    assert time.monotonic() - began_s < at_this_load(5.0)


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"NCCL_RAS_ENABLE": "0"}, "is off"), ({"NCCL_RAS_ADDR": "10.0.0.3:28028"}, "not on the loopback"),
        ({"NCCL_RAS_ADDR": "localhost:22"}, "not on the loopback"), ({"NCCL_RAS_ADDR": "\x1b[2J"}, "NCCL_RAS_ADDR=·[2J"),
        ({"NCCL_RAS_ADDR": "localhost:1025"}, "nothing listens on localhost:1025"),
    ],
)  # fmt: skip
def test_nobody_else_is_asked(env: dict[str, str], why: str) -> None:
    with trainer(**env) as pid:
        found = ask([pid])
    assert found is not None
    assert why in found.problem


def test_who_is_alone_or_gone_is_not_asked_about() -> None:
    with trainer(1, NCCL_RAS_ADDR="localhost:1025") as pid:
        assert ask([pid, (1 << 22) + 1]) is None


@given(st.lists(st.sampled_from([*ras.EARLY.splitlines(), *ras.GONE.splitlines(), "", "  Rank 99999999999 -- ", "#0-0 (x) MISMATCH"])))
def test_lines_in_any_order_end_nothing(lines: list[str]) -> None:
    try:
        found = read_report("\n".join(lines))
    except Unavailable:
        return
    assert len(found.lines) <= nccl.MOST_LINES


def test_a_report_is_as_long_here_as_on_another_machine() -> None:
    """Whatever listens there writes it."""
    long = ras.LATE.replace("2.27.3", "2." + "7" * 90).replace("node 172.16.64.211", "node " + "x" * 300)
    found = nccl.read_report(long)
    assert found.version == "2." + "7" * 38
    assert max(len(line) for line in found.lines) <= nccl.LINE_CHARS
    assert nccl.unpack_report(nccl.pack_report(found)) == found


def test_a_containers_network_is_entered() -> None:
    if os.geteuid():
        pytest.skip("only root may enter a network namespace")
    script = (
        "import socket; server = socket.create_server(('127.0.0.1', 28028)); print('up', flush=True); line, _ = server.accept(); "
        "line.recv(99); line.sendall(b'no')"
    )
    up = f"ip link set lo up; exec {sys.executable} -c \"{script}\""
    env = {**os.environ, "WORLD_SIZE": "2"}
    with subprocess.Popen(["unshare", "--net", "sh", "-c", up], env=env, stdout=subprocess.PIPE, text=True) as inside:
        assert inside.stdout is not None
        assert inside.stdout.readline() == "up\n"
        try:
            found = ask([inside.pid])
            assert found is not None
            assert "it sent 'no'" in found.problem
        finally:
            inside.kill()
