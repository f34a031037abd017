"""The NVML source on healthy GPUs: what it reads, in which tier, and how it says when."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

from gputop.model.board import Board
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml import gpm, slow
from gputop.sources.nvml.driver import Device, Meter
from gputop.sources.nvml.fast import Samples
from gputop.sources.nvml.gpm import FIRST
from gputop.sources.nvml.mig import FIELDS
from gputop.sources.nvml.procs import _ProcessUtilization
from tests.sources.nvml_rig import Rig
from tests.wait import PATIENCE_S

MIB = 1 << 20


def test_every_field_comes_from_its_call(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "PCI_DEVICES", str(tmp_path))
    (tmp_path / "0000:10:00.0").mkdir()
    (tmp_path / "0000:10:00.0/numa_node").write_text("1\n")
    (tmp_path / "0000:10:00.0/local_cpulist").write_text("48-95,144-191\n")
    rig.set(
        "gpus 2", "driver 570.10", "cuda 12.8", "util 61", "mem_util 7", "mem_used_mib 2048", "power_mw 321500", "temp 66", "mem_temp 71",
        "sm_clock 1755", "mem_clock 2619", "throttle 4", "pstate 2", "fan 44", "pcie_gen 4", "pcie_width 8", "enc 3", "dec 5",
        "ecc_corrected 9", "ecc_uncorrected 1", "retired 3", "remapped 2", "remap_pending 1",
        "compute_mode 3", "sm_active 31", "sm_occupancy 12",
        "tensor 20", "dram 15", "power_limit_mw 650000", "nvlink_mb_s 100", "pcie_tx_mb_s 50", "pcie_rx_mb_s 900", "gpu1.util 3",
    )  # fmt: skip
    source = rig.source()
    state = source.open()
    assert (state.state, state.detail["driver"], state.detail["cuda"], state.detail["gpus"]) == ("ok", "570.10", "12.8", "2")
    rig.until(source, lambda board: "sm_active_pct" in board.gpus[0].values and "remapped_rows" in board.gpus[1].values)
    got = rig.gpu(0).values
    expected = {
        "numa_node": 1, "near_cpus": "48-95,144-191",
        "name": "NVIDIA H200", "architecture": "Hopper", "pci_bus_id": "00000000:10:00.0", "lost": False, "util_pct": 61.0,
        "mem_util_pct": 7.0, "mem_used_bytes": 2048 * MIB, "mem_total_bytes": 143771 * MIB, "mem_reserved_bytes": 536 * MIB,
        "power_w": 321.5, "power_instant": True, "temp_c": 66.0, "mem_temp_c": 71.0, "sm_clock_mhz": 1755, "mem_clock_mhz": 2619,
        "sm_clock_max_mhz": 1980, "throttle_mask": 4, "pstate": 2, "fan_pct": 44.0, "pcie_gen": 4, "pcie_gen_max": 5, "pcie_width": 8,
        "enc_pct": 3.0, "dec_pct": 5.0, "ecc_corrected": 9, "ecc_uncorrected": 1, "retired_pages": 3, "remapped_rows": 2,
        "remap_pending": True, "remap_failed": False,
        "compute_mode": "Exclusive Process", "sm_active_pct": 31.0, "sm_occupancy_pct": 12.0, "tensor_active_pct": 20.0,
        "dram_active_pct": 15.0, "power_limit_w": 650.0, "power_limit_default_w": 700.0, "nvlink_links": 18, "mig_mode": False,
    }  # fmt: skip
    assert {name: got.get(name) for name in expected} == expected
    assert rig.gpu(1).values["util_pct"] == 3.0
    assert got["nvml_calls"] > 10
    assert got["nvml_ns"] > 0
    no_grace = {"c2c_tx_bytes", "c2c_rx_bytes", "c2c_link_bytes_per_s"}
    assert set(rig.gpu(0).missing) == {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "fabric_state", "fabric_health", *no_grace}


def test_a_gpu_with_links_to_a_grace_cpu_has_the_bytes_over_these(rig: Rig) -> None:
    rig.set("gpus 1", "c2c_links 10", "c2c_tx_mb_s 0", "c2c_rx_mb_s 90000", "pcie_rx_mb_s 3")
    source = rig.opened()
    names = {"c2c_rx_bytes", "c2c_tx_bytes", "pcie_rx_bytes", "c2c_link_bytes_per_s"}
    rig.until(source, lambda board: names <= set(board.gpus[0].values))
    first, first_ns = dict(rig.gpu().values), rig.gpu().read_ns["c2c_rx_bytes"]
    rig.until(source, lambda board: board.gpus[0].read_ns["c2c_rx_bytes"] - first_ns > 1_000_000_000)
    seconds = (rig.gpu().read_ns["c2c_rx_bytes"] - first_ns) / 1e9
    rates = [(rig.gpu().values[f"c2c_{way}_bytes"] - first[f"c2c_{way}_bytes"]) / seconds for way in ("rx", "tx")]
    assert rates == [pytest.approx(90e9, rel=0.1), 0.0]
    assert (first["c2c_links"], first["c2c_link_bytes_per_s"]) == (10, 44_712_000_000.0)


def test_counters_grow_at_the_rate_of_the_traffic(rig: Rig) -> None:
    rig.set("gpus 1", "pcie_tx_mb_s 50", "pcie_rx_mb_s 900", "nvlink_mb_s 100", "power_mw 200000")
    source = rig.opened()
    counters = {"pcie_rx_bytes": 900e6, "pcie_tx_bytes": 50e6, "energy_mj": 200e3}
    rig.until(source, lambda board: counters.keys() <= board.gpus[0].values.keys())
    # each has a beat of its own, energy one of 5 s: its rate is over the time between its own readings
    first, first_ns = dict(rig.gpu().values), dict(rig.gpu().read_ns)
    rig.until(source, lambda board: all(board.gpus[0].read_ns[name] - first_ns[name] > 2_000_000_000 for name in counters))
    gpu = rig.gpu()
    rates = {name: (gpu.values[name] - first[name]) / (gpu.read_ns[name] - first_ns[name]) * 1e9 for name in counters}
    assert rates == pytest.approx(counters, rel=0.3)


def test_utilization_is_stamped_when_the_driver_took_it(rig: Rig) -> None:
    rig.set("gpus 1", "util 90", "util_low 10", "wave_ms 400")
    source = rig.opened()
    stamps: dict[int, float] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(stamps) < 7 and time.monotonic() < deadline:
        for gpu in rig.read(source).gpus:
            if gpu.util_t_ns is not None:
                assert gpu.util_t_ns <= gpu.t_ns + 5_000_000
                stamps[gpu.util_t_ns // 10_000_000] = gpu.util_pct
        time.sleep(0.02)
    taken = sorted(stamps)
    # the driver refreshes every 1/6 s; a reading that came twice has one stamp (all within the jitter of two clocks)
    gaps = [newer - older for older, newer in pairwise(taken) if newer - older > 1]
    assert gaps
    assert sum(gap % 16.6667 < 2 or gap % 16.6667 > 15 for gap in gaps) > 0.7 * len(gaps), gaps
    assert {10.0, 90.0} >= set(stamps.values())


def test_stale_samples_are_not_passed_off_as_fresh(rig: Rig) -> None:
    rig.set("gpus 1", "util 40", "stale_samples 60")
    source = rig.opened()
    rig.until(source, lambda board: "util_pct" in board.gpus[0].values)
    assert rig.gpu().values["util_pct"] == 40.0
    assert "util_t_ns" not in rig.gpu().values
    assert "no fresh" in rig.gpu().missing["util_t_ns"]


def test_stamps_of_the_future_are_not_believed(rig: Rig) -> None:
    rig.set("gpus 1", "util 40", "samples_ahead_ms 900")
    source = rig.opened()
    stamps: list[int] = []
    while len(stamps) < 20:
        stamps += [gpu.util_t_ns for gpu in rig.read(source).gpus if gpu.util_t_ns is not None]
        assert max(stamps, default=0) <= time.monotonic_ns()


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "UNKNOWN", "21"])
def test_power_says_whether_it_is_instantaneous(rig: Rig, error: str) -> None:
    rig.set("gpus 1", "power_mw 500000", "power_avg_mw 100000", f"error.Field186 {error}")
    source = rig.opened()
    rig.until(source, lambda board: "power_w" in board.gpus[0].values)
    assert (rig.gpu().values["power_w"], rig.gpu().values["power_instant"]) == (100.0, False)


@pytest.mark.parametrize(("gpus", "share"), [(8, 1.0), (9, 0.5)])
def test_of_many_gpus_gpm_is_read_every_other_tick_and_its_copies_with_it(rig: Rig, gpus: int, share: float) -> None:
    """Utilization comes with each tick in either case; a rate is that of the time between two readings, however long."""
    rig.set(f"gpus {gpus}", f"log {rig.log}", "pcie_rx_mb_s 900")
    rig.until(rig.opened(100_000_000), lambda _: len(rig.calls("UtilizationRates", 0)) >= 24)
    polls = len(rig.calls("UtilizationRates", 0))
    assert len(rig.calls("GpmSampleGet", 0)) == pytest.approx(share * polls, abs=3)
    own = [gpu for frame in rig.frames for gpu in frame.gpus if gpu.index == 0]
    moved = [(gpu.t_ns, gpu.pcie_rx_bytes) for gpu in own if gpu.pcie_rx_bytes is not None]
    assert len(moved) == pytest.approx(share * polls, abs=3)
    rates = [1e9 * (newer[1] - older[1]) / (newer[0] - older[0]) for older, newer in pairwise(moved[2:])]
    assert median(rates) == pytest.approx(900e6, rel=0.1)


def test_pcie_rates_are_read_only_where_there_are_no_counters(rig: Rig) -> None:
    no_counters = ("gpu1.error.Field197 NOT_SUPPORTED", "gpu1.error.Field198 NOT_SUPPORTED")
    rig.set("gpus 2", "gpm_pcie 0", f"log {rig.log}", "pcie_tx_mb_s 5", "pcie_rx_mb_s 7", *no_counters)
    source = rig.opened()
    rig.until(source, lambda board: "pcie_rx_bytes_per_s" in board.gpus[1].values)
    assert rig.gpu(1).values["pcie_tx_bytes_per_s"] == 5e6
    assert rig.gpu(1).values["pcie_rx_bytes_per_s"] == 7e6
    assert "not supported" in rig.gpu(1).missing["pcie_rx_bytes"]
    assert "pcie_rx_bytes" in rig.gpu(0).values
    assert not rig.calls("PcieThroughput", gpu=0)


def test_pcie_rates_are_read_while_the_counters_fail(rig: Rig) -> None:
    traffic = ("gpus 1", "gpm_pcie 0", "pcie_tx_mb_s 5", "pcie_rx_mb_s 7")
    rates = {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"}
    rig.set(*traffic)
    source = rig.opened()
    rig.until(source, lambda board: "pcie_rx_bytes" in board.gpus[0].values and rates <= set(board.gpus[0].missing))
    rig.set(*traffic, "error.Field197 UNKNOWN")
    rig.until(source, lambda board: {"pcie_tx_bytes_per_s": 5e6, "pcie_rx_bytes_per_s": 7e6}.items() <= board.gpus[0].values.items())
    assert rig.gpu().missing["pcie_rx_bytes"] == "the driver failed: Unknown Error"
    rig.set(*traffic)
    rig.until(source, lambda board: "pcie_rx_bytes" in board.gpus[0].values and rates <= set(board.gpus[0].missing))


@pytest.mark.parametrize(("rx_gb_s", "tx_gb_s"), [(54, 1), (5, 0), (48, 60)])
def test_counters_of_32_bits_go_on_when_they_wrap(rig: Rig, rx_gb_s: int, tx_gb_s: int) -> None:
    """At 54 GB/s they go round once in 0.08 s, so that 0.1 s look like 11 GB/s."""
    rig.set("gpus 1", "gpm 0", f"pcie_rx_mb_s {rx_gb_s * 1000}", f"pcie_tx_mb_s {tx_gb_s * 1000}")
    source = rig.opened(100_000_000)
    rig.until(source, lambda board: "pcie_rx_bytes" in board.gpus[0].values)
    first, first_ns = dict(rig.gpu().values), rig.gpu().read_ns["pcie_rx_bytes"]
    rig.until(source, lambda board: board.gpus[0].read_ns["pcie_rx_bytes"] - first_ns > 2_000_000_000)
    seconds = (rig.gpu().read_ns["pcie_rx_bytes"] - first_ns) / 1e9
    rates = [(rig.gpu().values[name] - first[name]) / seconds / 1e9 for name in ("pcie_rx_bytes", "pcie_tx_bytes")]
    assert rates == pytest.approx([rx_gb_s, tx_gb_s], rel=0.1)


def test_counters_that_wrap_more_than_once_unseen_are_not_read(rig: Rig) -> None:
    rig.set("gpus 1", "gpm 0", "pcie_rx_mb_s 20000")
    source = rig.opened(1_000_000_000)
    rig.until(source, lambda board: board.gpus[0].values.get("pcie_rx_bytes_per_s") == 20e9)
    assert "overflows" in rig.gpu().missing["pcie_rx_bytes"]


def test_gpm_tells_of_pcie_and_of_kernels(rig: Rig) -> None:
    rig.set("gpus 1", f"log {rig.log}", "util 97", "gr_active 12", "sm_active 9", "pcie_rx_mb_s 54000", "pcie_tx_mb_s 100")
    source = rig.opened(100_000_000)
    rig.until(source, lambda board: "gr_active_pct" in board.gpus[0].values)
    first, first_ns = dict(rig.gpu().values), rig.gpu().read_ns["pcie_rx_bytes"]
    rig.until(source, lambda board: board.gpus[0].read_ns["pcie_rx_bytes"] - first_ns > 1_000_000_000)
    seconds = (rig.gpu().read_ns["pcie_rx_bytes"] - first_ns) / 1e9
    rates = [(rig.gpu().values[name] - first[name]) / seconds for name in ("pcie_rx_bytes", "pcie_tx_bytes")]
    assert rates == pytest.approx([54e9, 100e6], rel=0.05)
    assert (rig.gpu().values["util_pct"], rig.gpu().values["gr_active_pct"]) == (97.0, 12.0)


def test_when_kernels_ran_is_asked_where_sms_worked_otherwise_than_before(rig: Rig) -> None:
    """It alone costs a real driver a millisecond. Without SMs at work none ran."""
    rig.set("gpus 1", f"log {rig.log}", "gr_active 80", "sm_active 60")
    source = rig.opened(100_000_000)
    rig.until(source, lambda board: board.gpus[0].values.get("gr_active_pct") == 80.0)
    rig.until(source, lambda _: len(rig.calls("GpmSampleGet")) >= 30)
    compared = len(rig.calls("GpmMetricsGet"))
    assert compared < 1.5 * len(rig.calls("GpmSampleGet"))
    rig.set("gpus 1", f"log {rig.log}", "gr_active 90", "sm_active 62")
    rig.until(source, lambda board: board.gpus[0].values["gr_active_pct"] == 90.0)
    for sms, kernels in ((95, 95.0), (70, 90.0)):
        rig.set("gpus 1", f"log {rig.log}", "gr_active 90" if sms == 70 else "gr_active 95", f"sm_active {sms}")
        rig.until(source, lambda board, sms=sms: board.gpus[0].values["sm_active_pct"] == sms)
        assert rig.gpu().values["gr_active_pct"] == kernels
    rig.set("gpus 1", f"log {rig.log}", "gr_active 33", "sm_active 0")
    rig.until(source, lambda board: board.gpus[0].values["sm_active_pct"] == 0.0)
    assert rig.gpu().values["gr_active_pct"] == 0.0


def test_metrics_that_gpm_merely_names_are_not_believed(rig: Rig) -> None:
    """A driver that knows their numbers, and says 0."""
    rig.set("gpus 1", "util 97", "sm_active 60", "gr_active 0", "gpm_pcie 2", "pcie_rx_mb_s 900", "pcie_tx_mb_s 50")
    source = rig.opened(100_000_000)
    rig.until(source, lambda board: "impossible" in board.gpus[0].missing.get("gr_active_pct", ""))
    assert rig.gpu().values["sm_active_pct"] == 60.0
    assert "gr_active_pct" not in rig.gpu().values
    rig.set("gpus 1", "util 97", "sm_active 0", "gr_active 0", "gpm_pcie 2", "pcie_rx_mb_s 900", "pcie_tx_mb_s 50")
    rig.until(source, lambda board: board.gpus[0].values["sm_active_pct"] == 0.0 and board.gpus[0].values.get("pcie_rx_bytes") > 10**8)
    assert "gr_active_pct" not in rig.gpu().values, "who was caught is not asked again so soon"


def test_a_metric_that_was_wrong_once_is_taken_again_after_a_pause(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpm, "_FIRST_PAUSE_NS", 300_000_000)
    rig.set("gpus 1", "sm_active 60", "gr_active 0")
    source = rig.opened(100_000_000)
    rig.until(source, lambda board: "impossible" in board.gpus[0].missing.get("gr_active_pct", ""))
    rig.set("gpus 1", "sm_active 60", "gr_active 75")
    rig.until(source, lambda board: board.gpus[0].values.get("gr_active_pct") == 75.0)
    assert "gr_active_pct" not in rig.gpu().missing


def test_a_library_that_refuses_some_metrics_is_asked_for_the_others(rig: Rig) -> None:
    rig.set("gpus 1", "util 97", "sm_active 60", "gpm_strict 1", "pcie_rx_mb_s 900")
    source = rig.opened(100_000_000)
    rig.until(source, lambda board: "sm_active_pct" in board.gpus[0].values and board.gpus[0].values.get("pcie_rx_bytes") > 10**8)
    assert "no such metric" in rig.gpu().missing["gr_active_pct"]


@pytest.mark.parametrize("gpm", [0, 1])
def test_samples_are_asked_for_when_utilization_has_changed_and_else_now_and_then(rig: Rig, gpm: int) -> None:
    """Where GPM tells how long kernels ran, not even then."""
    settings = "gpus 1", f"log {rig.log}", f"gpm {gpm}"
    rig.set(*settings, "util 40")
    source = rig.opened(100_000_000)
    stamps: set[int] = set()

    def watched(board: Board) -> bool:
        stamps.add(board.gpus[0].values["util_t_ns"])
        return len(rig.calls("UtilizationRates")) >= 40

    rig.until(source, watched)
    assert len(rig.calls("Samples")) <= 8
    gaps = {round((newer - older) / 1e6 / 166.667) for older, newer in pairwise(sorted(stamps)) if newer - older > 5_000_000}
    assert gaps <= {1, 2}, "what it measured again in between is told"
    assert len(stamps) > 15
    before, asked = len(rig.calls("UtilizationRates")), len(rig.calls("Samples"))
    rig.set(*settings, "util 90", "util_low 10", "wave_ms 400")
    told: dict[int, set[float]] = {}

    def changed(board: Board) -> bool:
        told.setdefault(board.gpus[0].values["util_t_ns"], set()).add(board.gpus[0].values["util_pct"])
        return len(rig.calls("UtilizationRates")) >= before + 40

    rig.until(source, changed)
    more = len(rig.calls("Samples")) - asked
    assert more <= 8 if gpm else more > 8
    assert {90.0, 10.0} <= set().union(*told.values())
    assert sum(len(values) > 1 for values in told.values()) <= 1, "a measurement has one value"


@pytest.mark.parametrize(("make", "read"), [
    (_ProcessUtilization, lambda usage: usage.read({})), (Samples, lambda samples: samples._fetch() or samples._latest),
])  # fmt: skip
def test_after_the_wall_clock_was_set_back_the_driver_is_asked_for_all(rig: Rig, make: type, read: Callable[[object], object]) -> None:
    """What was seen last then lies in the future, and NVML has nothing newer."""
    rig.set("gpus 1", "util 40", f"procs {os.getpid()}:1024:50:C")
    rig.until(rig.opened(), lambda board: "procs" in board.gpus[0].values)
    reading = make(Device(nvml.nvmlDeviceGetHandleByIndex(0), Meter()))
    reading._seen_us = time.time_ns() // 1000 + 3_600_000_000
    assert read(reading)
    assert 0 < reading._seen_us <= time.time_ns() // 1000


def test_process_lists_with_memory_and_sm_share(rig: Rig) -> None:
    me, parent = os.getpid(), os.getppid()
    rig.set(
        "gpus 2",
        f"gpu0.procs {me}:1024:50:C, {me}:1024:50:G, {parent}:-:0:C, 77:5:3:M",
        "gpu1.procs " + ",".join(f"{pid}:10:0" for pid in range(1000, 1200)),
    )
    source = rig.opened()
    rig.until(source, lambda board: "procs" in board.gpus[0].values and "procs" in board.gpus[1].values)
    listed = {proc.pid: proc for proc in rig.gpu(0).values["procs"]}
    assert (listed[me].kind, listed[me].mem_bytes, listed[me].sm_pct) == ("C+G", 1024 * MIB, 50.0)
    assert (listed[parent].kind, listed[parent].mem_bytes, listed[parent].sm_pct) == ("C", None, 0.0)
    assert listed[77].kind == "C+M"
    assert len(rig.gpu(1).values["procs"]) == 200
    assert source.pids == {me, parent, 77, *range(1000, 1200)}
    rig.set("gpus 2", f"gpu0.procs {me}:1:1:C")
    rig.until(source, lambda _: source.pids == {me})
    assert rig.gpu(1).values["procs"] == []


def test_of_several_shares_of_a_process_the_newest_counts() -> None:
    now_us = time.time_ns() // 1000
    rows = [
        nvml.c_nvmlProcessUtilizationSample_t(pid=7, timeStamp=now_us, smUtil=90),
        nvml.c_nvmlProcessUtilizationSample_t(pid=7, timeStamp=now_us - 900_000, smUtil=10),
    ]
    usage = _ProcessUtilization(SimpleNamespace(mig=False, call=lambda *_: rows))
    assert usage._fetch({})[7][0] == 90.0
    assert usage._seen_us == now_us


def test_mig_instances(rig: Rig) -> None:
    rig.set("gpus 1", "util 50", "mig 1g.18gb:7:18000:500:16:33:98, 3g.71gb:2:71000:9000:60:80:81", "procs 4242:100:0:C:7")
    source = rig.opened()
    rig.until(source, lambda board: [mig.sm_active_pct for mig in board.gpus[0].values["mig"]] == [33.0, 80.0])
    first, second = rig.gpu().values["mig"]
    assert (first.util_pct, second.util_pct) == (98.0, 81.0)
    assert (first.index, first.gpu_instance, first.profile, first.sm_count, first.mem_used_bytes) == (0, 7, "1g.18gb", 16, 500 * MIB)
    assert second.mem_total_bytes == 71000 * MIB
    assert second.uuid.startswith("MIG-")
    assert rig.gpu().values["procs"][0].gpu_instance == 7
    assert rig.gpu().missing["util_pct"] == "not available while MIG is on"


def test_what_was_refused_while_mig_was_on_is_read_once_it_is_off(rig: Rig) -> None:
    split = ("gpus 1", "util 50", "procs 4242:100:9:C:7", "mig 1g.18gb:7:18000:500:16:33")
    rig.set(*split)
    source = rig.opened()
    why = "not available while MIG is on"
    rig.until(source, lambda board: {board.gpus[0].missing["util_pct"], board.gpus[0].missing["procs.sm_pct"]} == {why})
    refused = [reading for gpu in source._gpus for poller in gpu.pollers for reading in poller.groups if reading.reason == why]
    for reading in refused:
        reading.due_ns = 1 << 62  # however long it has been refused
    rig.set("gpus 1", "util 50", "procs 4242:100:9:C")
    rig.until(source, lambda board: board.gpus[0].values["util_pct"] == 50.0 and board.gpus[0].procs[0].sm_pct == 9.0)
    assert not rig.gpu().instances


def test_a_mig_instance_that_cannot_be_read_says_why_and_leaves_the_others(rig: Rig) -> None:
    migs = "mig 1g.18gb:7:18000:500:16:33, 3g.71gb:2:71000:9000:60:80, 1g.18gb:4:18000:600:16:44"
    rig.set("gpus 1", migs, "mig_broken 1")
    source = rig.opened()
    rig.until(source, lambda board: [mig.sm_active_pct for mig in board.gpus[0].values["mig"]] == [33.0, None, 44.0])
    first, broken, third = rig.gpu().values["mig"]
    assert (first.missing, third.missing, third.mem_used_bytes) == ({}, {}, 600 * MIB)
    assert (broken.index, broken.mem_used_bytes) == (1, None)
    assert broken.missing == dict.fromkeys(FIELDS, "the driver failed: Unknown Error")
    rig.set("gpus 1", migs)
    rig.until(source, lambda board: board.gpus[0].values["mig"][1].mem_used_bytes == 9000 * MIB)


def test_a_mig_instance_without_a_handle_says_why(rig: Rig) -> None:
    rig.set("gpus 1", "mig 1g.18gb:7:18000:500:16:33", "error.MigDeviceHandleByIndex NO_PERMISSION")
    source = rig.opened()
    rig.until(source, lambda board: "mig" in board.gpus[0].values)
    assert all(one.missing.keys() == set(FIELDS) and "no permission" in one.missing["uuid"] for one in rig.gpu().instances)


def test_an_instance_that_is_made_anew_has_nothing_of_the_one_before(rig: Rig) -> None:
    rig.set("gpus 1", f"log {rig.log}", "mig 1g.18gb:7:18000:500:16:33, 3g.71gb:2:71000:9000:60:80")
    source = rig.opened()
    rig.until(source, lambda board: [mig.sm_active_pct for mig in board.gpus[0].values["mig"]] == [33.0, 80.0])
    freed = len(rig.calls("GpmSampleFree"))
    rig.set("gpus 1", f"log {rig.log}", "mig 2g.35gb:7:35000:500:32:44, 3g.71gb:2:71000:9000:60:80")
    rig.until(source, lambda board: board.gpus[0].values["mig"][0].profile == "2g.35gb")
    anew, kept = rig.gpu().instances
    assert (anew.missing, kept.sm_active_pct) == ({"util_pct": FIRST, "sm_active_pct": FIRST}, 80.0)
    rig.until(source, lambda board: board.gpus[0].values["mig"][0].sm_active_pct == 44.0)
    assert len(rig.calls("GpmSampleFree")) == freed + 2


def test_a_new_split_is_asked_again_for_what_the_old_one_had_not(rig: Rig) -> None:
    rig.set("gpus 1", "mig 1g.18gb:7:18000:500:16:33", "gpm 0")
    source = rig.opened()
    why = "not supported on this GPU"
    rig.until(source, lambda board: [one.missing.get("sm_active_pct") for one in board.gpus[0].values["mig"]] == [why])
    rig.set("gpus 1", "mig 2g.35gb:7:35000:500:32:44", "gpm 1")
    rig.until(source, lambda board: board.gpus[0].values["mig"][0].sm_active_pct == 44.0)


def test_a_list_that_is_refused_under_mig_says_so_at_once_and_is_asked_again_after_it(rig: Rig) -> None:
    listed = "procs 4242:100:9:C, 4300:50:0:G"
    rig.set("gpus 1", listed, "mig 1g.18gb:7:18000:500:16:33", "error.GraphicsRunningProcesses NOT_SUPPORTED")
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[0].procs)
    why = "not available while MIG is on"
    assert {name: rig.gpu().missing.get(name) for name in ("procs.graphics", "procs.mps")} == {"procs.graphics": why, "procs.mps": None}
    rig.set("gpus 1", listed)
    rig.until(source, lambda board: {proc.pid for proc in board.gpus[0].procs} == {4242, 4300})
    assert not [name for name in rig.gpu().missing if name.startswith("procs.")]


@pytest.mark.parametrize(("gpm", "reason"), [(1, FIRST), (0, "not supported on this GPU")])
def test_the_activity_of_a_mig_instance_is_missing_for_a_reason(rig: Rig, gpm: int, reason: str) -> None:
    rig.set("gpus 1", "mig 1g.18gb:7:18000:500:16:33, 3g.71gb:2:71000:9000:60:80", f"gpm {gpm}")
    source = rig.source(look=True)
    source.open()
    rig.read(source, key=True)
    assert [one.missing for one in rig.gpu().instances] == [{"util_pct": reason, "sm_active_pct": reason}] * 2


def test_xid_is_reported_when_it_happens(rig: Rig) -> None:
    rig.set("gpus 2")
    source = rig.opened()
    rig.until(source, lambda board: "temp_c" in board.gpus[1].values)
    assert "xid" not in rig.gpu(1).values
    rig.set("gpus 2", "gpu1.xid 79")
    rig.until(source, lambda board: "xid" in board.gpus[1].values)
    assert rig.gpu(1).values["xid"] == 79
    assert "xid" not in rig.gpu(0).values


def test_without_gpm_the_sm_fields_say_so(rig: Rig) -> None:
    rig.set("gpus 1", "arch 8")
    source = rig.opened()
    rig.until(source, lambda board: "sm_active_pct" in board.gpus[0].missing)
    assert rig.gpu().missing["tensor_active_pct"] == "not supported on this GPU"
    assert rig.gpu().values["architecture"] == "Ada"


def test_a_key_frame_alone_says_everything(rig: Rig) -> None:
    rig.set("gpus 2", "error.FanSpeed NOT_SUPPORTED", f"procs {os.getpid()}:10:5")
    source = rig.opened()
    rig.until(source, lambda board: "remapped_rows" in board.gpus[1].values and "sm_active_pct" in board.gpus[0].values)
    for _ in range(5):
        rig.read(source)
    key = rig.read(source, key=True)
    alone = Board()
    alone.fold(key)
    for index in (0, 1):
        assert set(alone.gpus[index].values) >= set(rig.gpu(index).values)
        assert alone.gpus[index].missing["fan_pct"] == "not supported on this GPU"
        # an old reading keeps its own time
        assert alone.gpus[index].read_ns["remapped_rows"] < key.t_ns


def test_only_the_gpus_asked_for(rig: Rig) -> None:
    rig.set("gpus 4", f"log {rig.log}")
    source = rig.opened(gpus=frozenset({2}))
    rig.until(source, lambda board: "util_pct" in board.gpus[2].values)
    assert set(rig.board.gpus) == {2}
    assert not rig.calls("UtilizationRates", gpu=0)


def test_tiers(rig: Rig) -> None:
    rig.set("gpus 1", f"log {rig.log}")
    source = rig.opened(interval_ns=50_000_000)
    rig.until(source, lambda _: len(rig.calls("ComputeRunningProcesses")) >= 4)
    ticks, lists = rig.calls("UtilizationRates"), rig.calls("ComputeRunningProcesses")
    apart = [newer - older for older, newer in pairwise(ticks)]
    assert sorted(apart)[len(apart) // 2] == pytest.approx(50e6, rel=0.3)
    assert len(ticks) > 5 * len(lists)
    assert len(rig.calls("RemappedRows")) == 1


def test_the_library_is_shut_down_last(rig: Rig) -> None:
    rig.set("gpus 3", f"log {rig.log}")
    source = rig.opened()
    rig.until(source, lambda board: len(board.gpus) == 3)
    source.close()
    assert rig.log.read_text().splitlines()[-1].startswith("Shutdown")
