"""One moment as `gputop --json` prints it: what is null has a reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputop.findings.verdict import ProcState
from gputop.findings.ways import Way
from gputop.model.board import Board
from gputop.model.collective import Collective, collective_now
from gputop.model.frame import (
    Frame,
    Gpu,
    GpuProc,
    Host,
    MigInstance,
    Names,
    NetSample,
    ProcInfo,
    ProcSample,
    RdmaPort,
    SourceState,
    Transport,
)
from gputop.model.roles import Role
from gputop.stream import snapshot
from gputop.tui.draw.table import gpus_by_pid


def shown_of(*asked: Any) -> dict[str, Any]:
    """The snapshot as whoever reads its JSON has it."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(snapshot.take(*asked), enc_hook=str))
    return found


def taken(*gpus: Gpu, detail: dict[str, str] | None = None) -> dict:
    """What is printed of these samples, and of a process with a GPU beside them."""
    board = Board()
    procs = [ProcSample(7, 1, 5, "S", 0, 0, 0, 1)]
    sources = [SourceState("procfs", "ok", detail=detail or {})]
    board.fold(Frame(0, 9, key=True, gpus=list(gpus), infos=[ProcInfo(7, 1)], procs=procs, sources=sources))
    return shown_of(board, board, {}, {}, frozenset((7,)))


def test_a_gpu_without_utilization_was_read_when_the_rest_was() -> None:
    gpu = taken(Gpu(0, 3, temp_c=40.0), Gpu(0, 4, power_w=99.0, missing={"util_pct": "not supported"}))["gpus"][0]
    assert gpu["t_ns"] == 4


def test_what_is_made_of_a_reading_shares_its_reason() -> None:
    why = {"throttle_mask": "not supported", "nvlink_tx_bytes": "no NVLink is up"}
    gpu = taken(Gpu(0, 3, pcie_tx_bytes=10, missing=why))["gpus"][0]
    assert gpu["limits"] is None
    made = {name: gpu["missing"][name] for name in ("limits", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "pcie_tx_bytes_per_s")}
    assert made == {
        "limits": "not supported", "nvlink_tx_bytes_per_s": "no NVLink is up", "nvlink_rx_bytes_per_s": "not read yet",
        "pcie_tx_bytes_per_s": "not yet: a rate takes two readings",
    }  # fmt: skip


@pytest.mark.parametrize("gpu", [Gpu(0, 3, lost=True), Gpu(0, 3, pcie_rx_bytes=1, mig_mode=False, missing={"util_pct": "not supported"})])
def test_whatever_is_null_of_a_gpu_has_a_reason(gpu: Gpu) -> None:
    shown = taken(gpu)["gpus"][0]
    assert {name for name, value in shown.items() if value is None} == shown["missing"].keys()


def test_networks_and_ports_have_rates_and_reasons() -> None:
    older, board = Board(), Board()
    for second in (1, 3):
        nets = [NetSample("eth0\x1b", 500 * second, 100 * second, 0, 0, flaps=1), NetSample("docker0", 0, 0, 0, 0)]
        port = RdmaPort("mlx5_0/1", state="ACTIVE", rx_bytes=4000 * second, tx_bytes=None, missing={"tx_bytes": "it is broken"})
        frame = Frame(second, second * 10**9, host=Host(second * 10**9, nets=nets, rdma=[port]))
        snapshot.keep(older, board, frame)
        board.fold(frame)
    shown = shown_of(older, board, {}, {})
    eth0, docker0 = shown["nets"]
    assert (eth0["name"], eth0["rx_bytes_per_s"], eth0["tx_bytes_per_s"], eth0["flaps"]) == ("eth0·", 500.0, 100.0, 1)
    assert docker0["missing"]["flaps"] == "it is no hardware"
    [port] = shown["rdma"]
    assert (port["rx_bytes_per_s"], port["tx_bytes_per_s"], port["missing"]["tx_bytes_per_s"]) == (4000.0, None, "it is broken")
    assert unexplained(shown["nets"]) == unexplained(shown["rdma"]) == []
    assert shown_of(Board(), Board(), {}, {})["rdma"] is None


def test_a_rank_has_its_ways_and_what_it_could_use() -> None:
    board = Board()
    known = Transport("nccl", "", 2, ["mlx5_0"], {"NCCL_IB_DISABLE": "1\x1b"}, missing={"version": "nothing has it"})
    board.fold(Frame(0, 9, key=True, infos=[ProcInfo(7, 1, transport=known), ProcInfo(8, 1)], procs=[
        ProcSample(pid, 1, 5, "S", 0, 0, 0, 1) for pid in (7, 8)]))  # fmt: skip
    roles = {pid: Role("trainer", trainer_pid=pid) for pid in (7, 8)}
    ways = {7: (Way("rdma", "mlx5_0/1", 5e9), Way("shm"))}
    named = {7: (collective_now(None, Collective(7, "0xa", "All\x1bReduce", size_bytes=64, times=2, time_us=10, bus_bytes=90_000)),)}
    rank, lone = shown_of(board, board, roles, {}, frozenset((7, 8)), (), (), ways, named)["procs"]
    [collective] = rank["collectives"]
    assert (collective["coll"], collective["mean_us"], collective["busbw_gb_per_s"]) == ("All·Reduce", 5.0, 9.0)
    assert unexplained([collective]) == []
    assert "collectives" not in lone
    told = rank["transport"]
    assert (told["library"], told["version"], told["shm"], told["devices"]) == ("nccl", None, 2, ["mlx5_0"])
    assert told["variables"] == {"NCCL_IB_DISABLE": "1·"}
    assert [(way["kind"], way["on"], way["bytes_per_s"]) for way in told["ways"]] == [("rdma", "mlx5_0/1", 5e9), ("shm", "", None)]
    assert unexplained(told) == []
    assert "transport" not in lone


def unexplained(shown: object, path: str = "") -> list[str]:
    """Where there is a null that the ``missing`` beside it does not tell of."""
    if isinstance(shown, list):
        return [found for one in shown for found in unexplained(one, f"{path}[]")]
    if not isinstance(shown, dict):
        return []
    nulls = [f"{path}.{name}" for name, value in shown.items() if value is None and name not in shown.get("missing", {})]
    return nulls + [found for name, value in shown.items() for found in unexplained(value, f"{path}.{name}")]


def test_what_does_not_apply_to_a_process_is_left_out_and_what_is_not_known_has_a_reason() -> None:
    listed = [GpuProc(7), GpuProc(8, sm_pct=3.0, mem_pct=1.0, enc_pct=0.0, dec_pct=0.0, mem_bytes=5, gpu_instance=2)]
    broken = MigInstance(0, missing={"uuid": "the driver failed"})
    board, pids = Board(), range(5, 10)
    board.fold(Frame(0, 9, key=True, gpus=[Gpu(0, 3, procs=listed, mig_mode=True, mig=[broken], missing={"procs.sm_pct": "not supported"})],
                     infos=[ProcInfo(pid, 1, uses_cuda=None if pid == 7 else False) for pid in pids],
                     procs=[ProcSample(pid, 1, 5, "S", 0, 0, 0, 1) for pid in pids]))  # fmt: skip
    roles = {
        7: Role("trainer", 7, label="train.py"), 8: Role("trainer", 8, 3, label="train.py rank 3"),
        6: Role("worker", 7, index=0, label="worker 0"), 9: Role("worker", label="orphaned worker"),
    }  # fmt: skip
    states = {6: ProcState(6, "runnable", starving=None)}
    shown = shown_of(board, board, roles, states, frozenset(pids))
    assert unexplained({name: shown[name] for name in ("gpus", "procs")}) == []
    bystander, worker, hidden, rank, orphan = shown["procs"]
    applies = {"label", "rank", "trainer_pid", "state", "starving", "state_fractions", "state_inferred"}
    assert [applies & one.keys() for one in (bystander, worker, hidden, rank, orphan)] == [
        set(), applies - {"rank"}, applies, applies, {"label"},
    ]  # fmt: skip
    assert (hidden["missing"]["rank"], rank["rank"]) == ("/proc/7/environ is not readable", 3)
    assert (worker["state"], worker["missing"]["starving"]) == ("runnable", "not yet: it was not watched long enough")
    first, second = shown["gpus"][0]["procs"]
    assert first["missing"]["sm_pct"] == first["missing"]["enc_pct"] == "not supported"
    assert "gpu_instance" not in first
    assert (second["gpu_instance"], second["missing"]) == (2, {})
    assert rank["gpus"] == [{"gpu": 0, **second}]
    assert shown["gpus"][0]["mig"][0]["missing"]["uuid"] == "the driver failed"


def test_whatever_was_not_measured_of_a_process_has_a_reason() -> None:
    proc = taken()["procs"][0]
    why = proc["missing"]
    assert unexplained(proc) == []
    assert (why["cpu_pct"], why["read_bytes"]) == ("not yet: a rate takes two readings", "/proc/7/io is not readable")


def test_names_come_without_what_a_terminal_obeys() -> None:
    assert taken(Gpu(0, 3, name="\x1b[31mRed"))["gpus"][0]["name"] == "·[31mRed"


@pytest.mark.parametrize(("listed", "places"), [([7], [0]), ([7, 4242], [])])
def test_what_another_namespaces_process_holds_is_not_that_of_ours_with_its_number(listed: list[int], places: list[int]) -> None:
    board = Board()
    gpu = Gpu(0, 3, procs=[GpuProc(pid, mem_bytes=5) for pid in listed])
    board.fold(Frame(0, 9, key=True, gpus=[gpu], infos=[ProcInfo(7, 1, uses_cuda=False)], procs=[ProcSample(7, 1, 5, "S", 0, 0, 0, 1)]))
    shown = shown_of(board, board, {}, {}, frozenset((7,)))
    assert [place["gpu"] for place in shown["procs"][0]["gpus"]] == places
    assert [proc["pid"] for proc in shown["gpus"][0]["procs"]] == listed
    assert list(gpus_by_pid(board).get(7, {})) == places


def test_who_is_read_seldom_has_the_rates_of_his_last_two_readings_in_between() -> None:
    """Every line of `--json` has them: a bystander is read once a second, a GPU's counters of bytes too."""
    older, board = Board(), Board()
    frames = [
        Frame(seq, t_ns, key=t_ns == 0, procs=[sample(t_ns, t_ns // 4)] if t_ns % 10**9 == 0 else [], infos=[ProcInfo(7, 1)], gpus=[
            Gpu(0, t_ns, pcie_rx_bytes=t_ns // 1000) if t_ns % 10**9 == 0 else Gpu(0, t_ns, util_pct=1.0)])
        for seq, t_ns in enumerate(range(0, 25 * 10**8, 10**8))
    ]  # fmt: skip
    shown = []
    for frame in frames:
        snapshot.keep(older, board, frame)
        board.fold(frame)
        one = shown_of(older, board, {}, {})
        shown.append(([proc["cpu_pct"] for proc in one["procs"]], one["gpus"][0]["pcie_rx_bytes_per_s"]))
    assert shown == [([], None)] * 10 + [([25.0], 10**6)] * 15


def test_rates_are_of_all_threads_or_by_their_name_the_main_ones() -> None:
    def shown(threads: int) -> dict:
        older, newer = Board(), Board()
        for seq, board in enumerate((older, newer)):
            proc = ProcSample(7, 1, (seq + 1) * 10**9, "S", 0, 0, 0, threads, 0, 10**8 * seq, vol=70 * seq, invol=3 * seq)
            board.fold(Frame(seq, proc.t_ns, key=True, infos=[ProcInfo(7, 1)], procs=[proc]))
        return shown_of(older, newer, {}, {}, frozenset((7,)))["procs"][0]

    many, one = shown(4), shown(1)
    assert (many["switches_per_s"], many["main_switches_per_s"], many["main_invol_per_s"]) == (None, 73.0, 3.0)
    few = "only trainers, workers and processes that feed them are read thread by thread"
    assert many["missing"]["switches_per_s"].startswith(f"{few}: only eBPF counts")
    assert (one["switches_per_s"], one["invol_per_s"]) == (73.0, 3.0)
    assert (many["runq_pct"], many["missing"]["runq_pct"]) == (None, few)
    assert (many["run_delay_ns"], one["runq_pct"]) == (10**8, 10.0)


def sample(t_ns: int, utime_ns: int) -> ProcSample:
    return ProcSample(7, 1, t_ns, "S", utime_ns, 0, 0, 2)


@pytest.mark.parametrize(("mode", "mig", "why"), [
    (True, [], None), (True, None, "not read yet"), (False, None, "MIG is off"), (None, None, "not read yet"),
])  # fmt: skip
def test_the_instances_of_a_gpu_are_of_now(mode: bool | None, mig: list[object] | None, why: str | None) -> None:
    """After MIG was switched off those that were are told no more."""
    before = Gpu(0, 3, mig_mode=True, mig=[MigInstance(0)]) if mode is False else Gpu(0, 3, mig=mig)
    gpu = taken(before, Gpu(0, 4, mig_mode=mode))["gpus"][0]
    assert (gpu["mig"], gpu["missing"].get("mig")) == (mig, why)


def test_what_has_a_value_is_not_missing() -> None:
    gpu = taken(Gpu(0, 3, throttle_mask=0, pcie_tx_bytes_per_s=1.0, missing={"pcie_tx_bytes": "not supported"}))["gpus"][0]
    assert gpu["limits"] == []
    assert not {"limits", "pcie_tx_bytes_per_s"} & gpu["missing"].keys()


def test_a_kernel_that_measures_no_delays_says_so_of_each_process() -> None:
    assert taken(detail={"blkio_delay_ns": "switched off"})["procs"][0]["missing"]["disk_pct"] == "switched off"


def test_a_trainer_has_its_identity_and_each_part_that_is_not_known_its_reason() -> None:
    infos = [
        ProcInfo(7, 1, uid=0, user="ana", cgroup=f"/docker/{'3f2a' * 16}", env={"RANK": "1", "WORLD_SIZE": "2", "SLURM_JOB_ID": "4711"},
                 names=Names(container="train\x1b[2J", missing={"net_ns": "permission denied"})),
        ProcInfo(8, 1),
    ]  # fmt: skip
    board = Board()
    board.fold(Frame(0, 9, key=True, infos=infos, procs=[ProcSample(pid, 1, 5, "S", 0, 0, 0, 1) for pid in (7, 8)]))
    trainer, bystander = shown_of(board, board, {7: Role("trainer", 7, 1)}, {}, frozenset((7, 8)))["procs"]
    found = trainer["identity"]
    assert (found["user"], found["container_runtime"], found["container"]) == ("ana", "Docker", "train·[2J")
    assert (found["slurm_job_id"], found["training"], found["pod"]) == ("4711", "slurm 4711 × 2", None)
    assert {name for name, value in found.items() if value is None} == set(found["missing"])
    assert "identity" not in bystander
