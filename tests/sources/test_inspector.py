"""What NCCL's Inspector writes: lines of its versions, hostile ones, files that are begun again, unreadable, missing, not the rank's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputop.model.collective import Collective, collective_now
from gputop.model.frame import Frame, ProcInfo, Transport
from gputop.sources import Beat, Settings, Unavailable, inspector
from gputop.sources.inspector import InspectorSource
from gputop.sources.inspector_files import FIND_NS, LINE_BYTES, READ_BYTES, Rank, Tail
from gputop.sources.inspector_lines import MOST_KINDS, MOST_OPEN, Lines, Operation, Tallies
from gputop.sources.inspector_text import Text, operations
from tests.wait import until

PID, NS_PID = 41, 7
ON = {"NCCL_INSPECTOR_ENABLE": "1"}
SOON = {"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "1000000"}


def head(rank: int = 0, ranks: int = 2, pid: int = NS_PID, comm: str = "0x7f8c496ae9f661") -> dict[str, Any]:
    return {
        "header": {"id": comm, "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.2", "dump_timestamp_us": 1, "hostname": "x", "pid": pid},
    }


def perf(sn: int = 1, us: float = 61974, **fields: Any) -> dict[str, Any]:
    own = {"coll": "AllReduce", "coll_sn": sn, "coll_msg_size_bytes": 1 << 24, "coll_exec_time_us": us, "coll_busbw_gbs": 485.119}
    return {"coll_perf": own | fields}


def line(*parts: dict[str, Any]) -> bytes:
    return json.dumps({name: value for part in parts for name, value in part.items()}).encode()


def read(*lines: bytes) -> list[Operation]:
    return list(Lines(NS_PID).read(lines))


def test_a_line_of_each_version() -> None:
    algo = {"coll_algo": "Ring", "coll_proto": "LL128", "event_trace_ts": {"coll_start_ts": 3, "kernel_events": [{"channel_id": 0}]}}
    v40 = read(line(head(2, 8), perf(1407)))
    v43 = read(line(head(2, 8), {"dump_stats": {"coll_records": 1}}), line(perf(1407, **algo)))
    [old], [new] = v40, v43
    assert (old.comm, old.coll, old.rank, old.ranks, old.nodes, old.sn) == ("0x7f8c496ae9f661", "AllReduce", 2, 8, 1, 1407)
    assert (old.size_bytes, old.us, old.busbw_mb_per_s, old.algo, old.name) == (1 << 24, 61974, 485_119, "", "")
    assert (new.comm, new.sn, new.us, new.algo, new.proto) == (old.comm, 1407, 61974, "Ring", "LL128")


def test_sends_are_read_and_not_compared() -> None:
    sent = {"p2p": "Send", "p2p_sn": 4, "p2p_peer": 1, "p2p_msg_size_bytes": 4096, "p2p_exec_time_us": 9, "p2p_busbw_gbs": 0.5}
    [one] = read(line(head(), {"p2p_perf": sent}))
    assert (one.coll, one.sn, one.size_bytes, one.us, one.busbw_mb_per_s) == ("Send", None, 4096, 9, 500)


def test_a_line_of_another_process_by_the_same_name_is_not_the_ranks() -> None:
    assert read(line(head(pid=NS_PID + 1), perf())) == []


@pytest.mark.parametrize(
    "hostile",
    [
        b"", b"\xff\xfe", b"{", b"[1]", b"null", b'{"header":3,"coll_perf":[]}', b"[" * 50_000, b'{"coll_perf":' * 20_000, b"9" * 60_000,
        line(head(), {"coll_perf": {"coll": 7}}), line(head(comm=""), perf()), line({"header": {"id": ["x"]}}, perf()),
        line(head(), {"coll_perf": {}}),
    ],
)  # fmt: skip
def test_a_line_that_is_none_costs_itself(hostile: bytes) -> None:
    found = read(hostile, line(head(), perf()))
    assert [one.us for one in found] == [61974]


@pytest.mark.parametrize("value", [-1, 1e300, True, "7", None, [1], {"a": 1}, 10**30])
def test_a_value_that_is_none_costs_that_value(value: Any) -> None:
    [one] = read(line(head(), perf(coll_busbw_gbs=value, coll_msg_size_bytes=value, coll="All\x1b[2JReduce" + "x" * 999)))
    assert (one.busbw_mb_per_s, one.size_bytes, one.us) == (None, None, 61974)
    assert "\x1b" not in one.coll
    assert len(one.coll) == 64


def test_who_came_last_is_the_rank_with_the_shortest_time() -> None:
    tallies = Tallies()
    for sn in range(10):
        for pid, rank in ((1, 0), (2, 1), (3, 2)):
            us = 1000 if rank == 1 else 9000 + 1000 * rank
            [one] = read(line(head(rank, 3), perf(sn, us, coll_busbw_gbs=16.0 if rank == 1 else 1.6)))
            tallies.add(pid, 0, one, sn + 1)
    late, early = (tallies.of[pid]["0x7f8c496ae9f661", "AllReduce"] for pid in (2, 1))
    assert (late.times, late.bytes, late.compared, late.late, late.awaited_us) == (10, 10 << 24, 10, 10, 90_000)
    assert (early.times, early.compared, early.late, early.time_us) == (10, 10, 0, 90_000)
    now = collective_now(None, late)
    assert (now.mean_us, now.busbw_gb_per_s, now.late_share, now.awaited_us) == (1000.0, 16.0, 1.0, 9000.0)
    assert collective_now(None, early).missing.keys() == {"awaited_us", "time_share"}


def test_without_all_ranks_nobody_is_late() -> None:
    tallies = Tallies()
    [one] = read(line(head(0, 16), perf()))
    tallies.add(1, 0, one, 1)
    assert tallies.of[1][one.comm, one.coll].compared == 0
    assert "late_share" in collective_now(None, tallies.of[1][one.comm, one.coll]).missing


def test_another_users_communicator_is_another_one() -> None:
    tallies = Tallies()
    for pid, uid in ((1, 1000), (2, 1001)):
        [one] = read(line(head(pid - 1), perf(us=pid)))
        tallies.add(pid, uid, one, 1)
    assert tallies.of[1][one.comm, one.coll].compared == 0


def test_sums_are_bounded() -> None:
    tallies = Tallies()
    for i in range(2 * MOST_OPEN):
        [one] = read(line(head(comm=hex(i)), perf(i)))
        tallies.add(1, 0, one, 1)
    assert len(tallies.of[1]) == MOST_KINDS
    assert len(tallies._open) <= MOST_OPEN
    tallies.keep(())
    assert tallies.of == {}


class FakeRank:
    """A rank's folder in a made /proc, with a root folder of its own, and the Inspector's folder in that."""

    def __init__(self, root: Path) -> None:
        self.root, self.proc = root, root / f"proc/{PID}"
        self.folder = self.proc / "root/dumps"
        self.folder.mkdir(parents=True)
        self.environ(NCCL_INSPECTOR_DUMP_DIR="/dumps", **SOON)
        self.file = self.folder / f"{os.uname().nodename}-pid{NS_PID}.log"

    def environ(self, **variables: str) -> None:
        (self.proc / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in variables.items()))

    def write(self, *lines: bytes, end: bytes = b"\n", file: Path | None = None) -> None:
        with open(file or self.file, "ab") as out:
            out.write(b"\n".join(lines) + end)

    def tail(self, uid: int | None = None) -> Tail:
        return Tail(f"{self.root}/proc/", Rank(PID, 1, NS_PID, os.getuid() if uid is None else uid, ON))


@pytest.fixture
def rank(tmp_path: Path) -> FakeRank:
    return FakeRank(tmp_path)


@pytest.fixture
def tail(rank: FakeRank) -> Iterator[Tail]:
    made = rank.tail()
    yield made
    made.close()


def numbers(found: list[Operation]) -> list[int | None]:
    return [one.sn for one in found]


def refused(tail: Tail) -> str:
    for t_ns in (0, 1):  # the reason stands until the next search
        with pytest.raises(Unavailable) as why:
            tail.read(t_ns)
    tail.close()
    return why.value.reason


def test_a_file_is_read_on_from_where_it_ended(rank: FakeRank, tail: Tail) -> None:
    rank.write(line(head(), perf(1)), line(head(), perf(2))[:40], end=b"")
    assert numbers(tail.read(0)) == [1]
    rank.write(line(head(), perf(2))[40:])
    assert numbers(tail.read(1)) == [2]
    assert tail.read(2) == []


def test_a_file_that_begins_again_is_read_from_its_begin(rank: FakeRank, tail: Tail) -> None:
    rank.write(line(head(), perf(1)), line(head(), perf(2)))
    tail.read(0)
    rank.file.write_bytes(line(head(), perf(7)) + b"\n")
    assert numbers(tail.read(1)) == [7]


def test_the_newest_file_is_the_ranks_and_that_of_its_host_before_others(rank: FakeRank, tail: Tail) -> None:
    other = rank.folder / f"othernode-pid{NS_PID}.log"
    rank.write(line(head(), perf(99)), file=other)
    assert numbers(tail.read(0)) == [99], "in a container the host has another name"
    rank.write(line(head(), perf(1)))
    os.utime(other, (2**31, 2**31))
    assert numbers(tail.read(FIND_NS)) == [1]
    rank.file.unlink()
    rank.write(line(head(), perf(5)))
    assert numbers(tail.read(2 * FIND_NS)) == [5], "a file of the same name in place of it"


def test_only_the_end_of_a_long_file_is_read(rank: FakeRank, tail: Tail) -> None:
    rank.write(*(line(head(), perf(i)) for i in range(4000)))
    assert rank.file.stat().st_size > 2 * READ_BYTES
    found = numbers(tail.read(0))
    assert found[-1] == 3999
    assert 100 < len(found) < 2000
    assert tail.read(1) == []


def test_a_line_without_end_is_skipped(rank: FakeRank, tail: Tail) -> None:
    rank.write(b"x" * (LINE_BYTES + 1), end=b"")
    assert tail.read(0) == []
    rank.write(b"x" * LINE_BYTES)
    rank.write(line(head(), perf(3)))
    assert numbers(tail.read(1)) == [3]


def test_links_pipes_and_strangers_files_are_not_read(rank: FakeRank, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    rank.write(line(head(), perf(1)), file=secret)
    rank.file.symlink_to(secret)
    assert refused(rank.tail())
    rank.file.unlink()
    os.mkfifo(rank.file)
    assert "regular" in refused(rank.tail())
    rank.file.unlink()
    rank.write(line(head(), perf(1)))
    assert "own user" in refused(rank.tail(uid=os.getuid() + 1))
    (rank.proc / "root/way").symlink_to(rank.folder)
    rank.environ(NCCL_INSPECTOR_DUMP_DIR="/way", **SOON)
    assert "link" in refused(rank.tail())
    rank.environ(NCCL_INSPECTOR_DUMP_DIR="/dumps/../dumps", **SOON)
    assert ".." in refused(rank.tail())


def test_what_is_missing_has_its_reason(rank: FakeRank) -> None:
    assert "no JSON lines yet" in refused(rank.tail())
    rank.environ(NCCL_INSPECTOR_DUMP_DIR="/dumps")
    assert "only as the job ends" in refused(rank.tail())
    rank.environ(NCCL_INSPECTOR_DUMP_DIR="/nowhere", **SOON)
    assert "folder" in refused(rank.tail())
    rank.environ(NCCL_INSPECTOR_OTEL_EXPORT="1", **SOON)
    assert "OTLP" in refused(rank.tail())
    (rank.proc / "environ").unlink()
    assert "another user's" in refused(rank.tail())


def test_the_folder_has_a_usual_name_in_the_working_directory(rank: FakeRank, tail: Tail) -> None:
    rank.environ(SLURM_JOB_ID="4711", **SOON)
    folder = rank.proc / "cwd/nccl-inspector-4711"
    folder.mkdir(parents=True)
    rank.write(line(head(), perf(8)), file=folder / f"h-pid{NS_PID}.log")
    assert numbers(tail.read(0)) == [8]


# Prometheus text

V28 = (
    'nccl_{name}{{comm_id="0x7f8c496ae9f661",hostname="n1",rank="3",slurm_job="x",slurm_job_id="42",nranks="8",n_nodes="2",'
    'gpu_device_id="GPU{gpu}",collective="AllReduce",coll_sn="77",timestamp="2026-01-01T00:00:00Z",message_size="16.00MB"}} {value}\n'
)
V51 = (
    'nccl_{name}{{version="v5.1",slurm_job_id="unknown",node="n1",gpu="GPU{gpu}",comm_name="DP Group 0",n_nodes="1",nranks="4",'
    'collective="{coll}",message_size="{size}",algo_proto="Ring_ll128"}} {value}\n'
)


def text(form: str, gbs: float = 678.263, us: float = 1500.4, gpu: int = 0, coll: str = "AllReduce", size: str = "4-5GB") -> bytes:
    named = (("algorithm_bandwidth_gbs", 9.0), ("bus_bandwidth_gbs", gbs), ("collective_exec_time_microseconds", us))
    return "".join(form.format(name=name, value=f"{value:.6g}", gpu=gpu, coll=coll, size=size) for name, value in named).encode()


def prom(rank: FakeRank, data: bytes, uuid: str = "GPU-0a", **variables: str) -> Path:
    rank.environ(NCCL_INSPECTOR_PROM_DUMP="1", NCCL_INSPECTOR_DUMP_DIR="/dumps", **variables)
    file = rank.folder / f"nccl_inspector_metrics_{uuid}.prom"
    file.write_bytes(data)
    return file


def test_a_folder_that_cannot_be_read_has_a_reason() -> None:
    with open(os.devnull, "rb") as no_folder, pytest.raises(Unavailable, match="folder"):
        Text("/proc/self/", os.geteuid()).read(no_folder.fileno(), "", time.time())


def test_text_of_each_version() -> None:
    [old] = operations(text(V28))
    assert (old.comm, old.coll, old.rank, old.ranks, old.nodes, old.size_bytes) == ("0x7f8c496ae9f661", "AllReduce", 3, 8, 2, 16 << 20)
    assert (old.us, old.busbw_mb_per_s, old.sn, old.is_mean) == (1500, 678_263, None, True)
    new = {one.coll: one for one in operations(text(V51) + text(V51, us=9.0, size="1-2KB") + text(V51, coll="AllGather"))}
    longest = new["AllReduce"]
    assert (longest.comm, longest.name, longest.us) == ("DP Group 0", "DP Group 0", 1500), "of the size that takes longest"
    assert (longest.size_bytes, longest.algo, longest.proto) == (None, "Ring", "LL128")
    assert len(new) == 2
    p2p = text(V51, coll="Send").replace(b"nccl_", b"nccl_p2p_").replace(b"p2p_collective_", b"p2p_")
    p2p = p2p.replace(b"collective=", b"p2p_operation=")
    assert [(one.coll, one.us) for one in operations(p2p)] == [("Send", 1500)]


@pytest.mark.parametrize(
    "hostile",
    [
        b"", b"\xff" * 9999, b"nccl_bus_bandwidth_gbs{" * 9999, b'nccl_bus_bandwidth_gbs{a="b"} 1e999\n', b"# HELP x\n" * 9999,
        text(V51, coll=""), text(V28).replace(b"0x7f8c496ae9f661", b""), text(V51).replace(b"\n", b" 7\n"),
    ],
)  # fmt: skip
def test_text_that_is_none_costs_itself(hostile: bytes) -> None:
    assert [one.us for one in operations(hostile + b"\n" + text(V28))] == [1500]


def test_numbers_that_nobody_measured_are_none() -> None:
    [one] = operations(text(V28, gbs=1e20, us=1e20).replace(b'nranks="8"', b'nranks="9999999999"'))
    assert (one.us, one.busbw_mb_per_s, one.ranks) == (None, None, None)


def test_the_text_of_the_ranks_own_gpu_is_read(rank: FakeRank) -> None:
    prom(rank, text(V51, us=100.0), "GPU-0a", LOCAL_RANK="1")
    prom(rank, text(V51, us=200.0, gpu=1), "GPU-0b", LOCAL_RANK="1")
    with closing(rank.tail()) as tail:
        assert [one.us for one in tail.read(0)] == [200]
        assert [one.us for one in tail.read(1)] == [200], "it stands until the next dump"


def test_the_text_that_the_rank_has_open_is_its_own(rank: FakeRank) -> None:
    prom(rank, text(V51, us=100.0), "GPU-0a")
    own = prom(rank, text(V51, us=200.0), "GPU-0b")
    with closing(rank.tail()) as tail:
        assert "several" in refused(tail)
    (rank.proc / "fd").mkdir()
    (rank.proc / "fd/7").symlink_to(own)
    with closing(rank.tail()) as tail:
        assert [one.us for one in tail.read(0)] == [200]


def test_old_text_links_and_strangers_files_are_not_read(rank: FakeRank, tmp_path: Path) -> None:
    file = prom(rank, text(V51))
    os.utime(file, (1, 1))
    with closing(rank.tail()) as tail:
        assert "nothing for" in refused(tail)
    file.unlink()
    (tmp_path / "secret").write_bytes(text(V51))
    file.symlink_to(tmp_path / "secret")
    with closing(rank.tail()) as tail:
        assert "no text" in refused(tail)
    file.unlink()
    os.mkfifo(file)
    with closing(rank.tail()) as tail:
        assert "no text" in refused(tail)
    file.unlink()
    prom(rank, text(V51))
    with closing(rank.tail(uid=os.getuid() + 1)) as tail:
        assert "no text" in refused(tail)


def test_means_are_told_as_what_they_are() -> None:
    tallies = Tallies()
    for second in range(3):
        for one in operations(text(V51)):
            tallies.add(PID, 0, one, second * 10**9)
    [kept] = tallies.of[PID].values()
    now = collective_now(kept, replace(kept, t_ns=4 * 10**9))
    assert (now.mean_us, now.busbw_gb_per_s, now.times) == (1500, pytest.approx(678.263, rel=0.001), 1)
    assert (now.time_share, now.late_share) == (None, None)
    assert "means" in now.missing["time_share"]
    assert "means" in now.missing["late_share"]


def beat(source: InspectorSource, seq: int, infos: list[ProcInfo] | None = None, gone: list[int] | None = None) -> tuple[Frame, Beat]:
    one = Beat(time.monotonic_ns(), seq, not seq)
    frame = Frame(seq, one.t_ns, key=one.key, infos=infos or [], gone=gone or [])
    source.read(one, frame)
    return frame, one


def test_the_source_sends_what_changed_and_names_what_is_in_the_way(rank: FakeRank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "EVERY_NS", 1_000_000)
    monkeypatch.setattr(inspector, "SHARE", 1.0)
    monkeypatch.setattr("gputop.sources.inspector_files.RETRY_NS", 1_000_000)
    source = InspectorSource(Settings(root=str(rank.root)))
    assert source.open().state == "ok"
    info = ProcInfo(PID, 1, uid=os.getuid(), ns_pid=NS_PID, transport=Transport("nccl", variables=ON))
    told = [*beat(source, 0, [info])[1].changed]
    until(lambda: told.extend(beat(source, 1)[1].changed) or told)
    assert (told[0].state, told[0].detail) == ("partial", {str(PID): "its Inspector has written no JSON lines yet"})
    rank.write(line(head(), perf(1)))
    sent = list[Collective]()
    until(lambda: sent.extend(beat(source, 2)[0].collectives) or sent)
    assert (sent[0].pid, sent[0].coll, sent[0].times) == (PID, "AllReduce", 1)
    assert [one.times for one in beat(source, 0)[0].collectives] == [1], "a key frame has all"
    assert beat(source, 3)[0].collectives == []
    assert beat(source, 0, gone=[PID])[0].collectives == []
    source.close()


def test_a_rank_without_the_inspector_costs_no_thread(rank: FakeRank) -> None:
    source = InspectorSource(Settings(root=str(rank.root)))
    off = Transport("nccl", variables={"NCCL_INSPECTOR_ENABLE": "0"})
    beat(source, 0, [ProcInfo(PID, 1, transport=off), ProcInfo(9, 1, transport=Transport()), ProcInfo(8, 1)])
    assert source._thread is None
    source.close()


def test_a_process_of_this_machine(tmp_path: Path) -> None:
    env = os.environ | SOON | {"NCCL_INSPECTOR_DUMP_DIR": "dumps"}
    (tmp_path / "dumps").mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=tmp_path, env=env) as process:
        file = tmp_path / f"dumps/{os.uname().nodename}-pid{process.pid}.log"
        file.write_bytes(line(head(pid=process.pid), perf(6)) + b"\n")
        tail = Tail("/proc/", Rank(process.pid, 1, process.pid, os.getuid(), ON))
        assert numbers(tail.read(0)) == [6]
        tail.close()
