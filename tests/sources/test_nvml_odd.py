"""The NVML source where a driver says what cannot be, or does what nobody foresaw."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputop.recording.format import pack_frames
from gputop.sources import Unavailable
from gputop.sources.nvml import numbers
from gputop.sources.nvml.gpu import WatchedGpu
from gputop.sources.nvml.groups import Poll
from gputop.stream.snapshot import _gpu_proc
from gputop.system import crash
from tests.sources.nvml_rig import Rig


def test_a_number_with_all_bits_set_is_no_value(rig: Rig) -> None:
    none = 2**32 - 1
    keys = ("util", "power_mw", "power_limit_mw", "sm_clock", "fan", "pcie_gen", "enc", "mem_temp", "remapped")
    rig.set("gpus 1", "temp -10", "pstate 32", "error.Samples NOT_SUPPORTED", f"procs 4242:7:{none}:C", *(f"{key} {none}" for key in keys))
    source = rig.opened()
    fields = {"util_pct", "power_w", "power_limit_w", "sm_clock_mhz", "fan_pct", "pcie_gen", "enc_pct", "mem_temp_c", "remapped_rows"}
    fields.add("pstate")  # by a number of its own
    rig.until(source, lambda board: fields <= set(board.gpus[0].missing))
    assert {rig.gpu().missing[field] for field in fields} == {"the driver has no value for it"}
    assert not fields & set(rig.gpu().values)
    assert rig.gpu().values["temp_c"] == -10.0
    rig.until(source, lambda board: board.gpus[0].values["procs"][0].mem_bytes)
    assert rig.gpu().values["procs"][0].sm_pct is None


@pytest.mark.parametrize(("value", "told"), [
    ("ull:18446744073709551614", "1.84467e+19"), ("dbl:1e300", "1e+300"), ("dbl:inf", "inf"), ("dbl:nan", "nan"), ("sll:-5", "-5"),
])  # fmt: skip
def test_what_cannot_be_is_no_value_and_costs_nothing_else(rig: Rig, value: str, told: str) -> None:
    fields = {138: "nvlink_tx_bytes", 82: "mem_temp_c", 186: "power_w", 197: "pcie_tx_bytes"}
    rig.set("gpus 2", "gpm_pcie 0", "util 50", "error.PowerUsage UNKNOWN", *(f"gpu0.value.Field{field} {value}" for field in fields))
    source = rig.opened()
    names = set(fields.values()) - ({"mem_temp_c"} if value == "sll:-5" else set())
    rig.until(source, lambda board: names <= set(board.gpus[0].missing) and "pcie_tx_bytes" in board.gpus[1].values)
    assert not names & set(rig.gpu().values)
    assert rig.gpu().values["util_pct"] == 50.0
    assert rig.gpu(0).missing["power_w"].startswith(f"the driver reports {told} mW, which is impossible")
    assert rig.gpu(0).missing["pcie_tx_bytes"] == f"the driver reports {told} bytes, which is impossible"
    pack_frames(rig.frames)  # the stream holds it


@pytest.mark.parametrize("value", ["uint:4294967290", "dbl:nan"])
def test_power_that_cannot_be_is_read_in_the_other_way(rig: Rig, value: str) -> None:
    rig.set("gpus 1", f"value.Field186 {value}", "power_mw 90000")
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[0].values["power_w"] == 90.0)
    assert rig.gpu().values["power_instant"] is False


def test_a_share_of_time_beyond_all_of_it_is_none(rig: Rig) -> None:
    rig.set("gpus 1", "util 137", "mem_util 40", "enc 250")
    source = rig.opened()
    rig.until(source, lambda board: {"util_pct", "enc_pct"} <= set(board.gpus[0].missing))
    assert rig.gpu().missing["util_pct"] == "the driver reports 137 %, which is impossible"
    assert rig.gpu().missing["enc_pct"] == "the driver reports 250 %, which is impossible"
    assert rig.gpu().values["mem_util_pct"] == 40.0


def test_clocks_and_memory_that_cannot_be(rig: Rig) -> None:
    told = ("sm_clock 4000000000", "mem_clock_max 200000", "mem_total_mib 1000", "mem_used_mib 1001", "mem_reserved_mib 0")
    rig.set("gpus 2", "util 50", *(f"gpu0.{one}" for one in told))
    source = rig.opened()
    rig.until(source, lambda board: {"sm_clock_mhz", "mem_clock_max_mhz", "mem_used_bytes"} <= set(board.gpus[0].missing))
    assert rig.gpu(0).missing["sm_clock_mhz"] == "the driver reports 4e+09 MHz, which is impossible"
    assert rig.gpu(0).missing["mem_used_bytes"] == f"the driver reports {1001 << 20} of {1000 << 20} bytes in use, which is impossible"
    assert not {"sm_clock_mhz", "mem_clock_max_mhz", "mem_used_bytes", "mem_total_bytes"} & set(rig.gpu(0).values)
    assert rig.gpu(0).values["util_pct"] == 50.0
    assert rig.gpu(1).values["sm_clock_mhz"] == 1980


def test_limits_and_links_of_nothing_and_states_beyond_the_last(rig: Rig) -> None:
    told = {
        "power_limit_w": "power_limit_mw 0", "power_limit_default_w": "power_default_mw 0", "power_limit_max_w": "power_max_mw 0",
        "sm_clock_max_mhz": "sm_clock_max 0", "mem_clock_max_mhz": "mem_clock_max 0", "pcie_gen": "pcie_gen 4000000000",
        "pcie_gen_max": "pcie_gen_max 0", "pcie_width": "pcie_width 0", "pcie_width_max": "pcie_width_max 65000", "fan_pct": "fan 7000",
        "pstate": "pstate 77", "temp_c": "temp 400", "mem_total_bytes": "mem_total_mib 0",
    }  # fmt: skip
    rig.set("gpus 2", *(f"gpu0.{one}" for one in told.values()))
    source = rig.opened()
    rig.until(source, lambda board: told.keys() <= board.gpus[0].missing.keys() and told.keys() <= board.gpus[1].values.keys())
    assert not told.keys() & rig.gpu(0).values.keys()
    assert rig.gpu(0).missing["power_limit_w"] == "the driver reports 0 mW, which is impossible"
    assert rig.gpu(0).missing["pcie_width"] == "the driver reports 0, which is impossible"
    assert all(rig.gpu(0).missing[name].endswith("which is impossible") for name in told)


def test_a_process_has_no_more_than_its_gpu(rig: Rig) -> None:
    """Who has less keeps his."""
    rig.set("gpus 1", "mem_total_mib 1000", "mem_used_mib 950", "mem_reserved_mib 0", "procs 4242:99614720:250:C, 4243:900:30:C")
    source = rig.opened()
    rig.until(source, lambda board: "procs.mem_bytes" in board.gpus[0].missing and "procs.sm_pct" in board.gpus[0].missing)
    wrong, right = rig.gpu().values["procs"]
    assert (wrong.mem_bytes, wrong.sm_pct, right.mem_bytes, right.sm_pct) == (None, None, 900 << 20, 30.0)
    why = f"the driver reports {99614720 << 20} of {1000 << 20} bytes in use, which is impossible"
    told = _gpu_proc(wrong, rig.gpu())["missing"]
    assert (told["mem_bytes"], told["sm_pct"]) == (why, "the driver reports 250 %, which is impossible")


def test_a_link_faster_than_any_is_not_believed(rig: Rig) -> None:
    """A rate that went below 0 in 32 bits; the counters, which are read where there are any, are not there."""
    no_counters = "gpm_pcie 0", "error.Field197 NOT_SUPPORTED", "error.Field198 NOT_SUPPORTED"
    rig.set("gpus 1", "util 50", "pcie_tx_mb_s 90", "pcie_rx_mb_s 4294966", *no_counters)
    source = rig.opened()
    told = "the driver reports 4.29497e+09 KB/s, which is impossible"
    rig.until(source, lambda board: board.gpus[0].missing.get("pcie_rx_bytes_per_s") == told)
    assert "pcie_rx_bytes_per_s" not in rig.gpu().values


def test_more_gpus_than_there_can_be_are_not_asked_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.set("gpus 2")
    monkeypatch.setattr(numbers, "MOST_GPUS", 1)
    with pytest.raises(Unavailable, match="NVML does not start: the driver reports 2 GPUs, which is impossible"):
        rig.source().open()


@pytest.mark.parametrize("wanted", [1, 4294967295])
def test_a_list_that_never_has_room_enough_costs_itself_only(rig: Rig, wanted: int) -> None:
    rig.set("gpus 2", "util 50", f"gpu0.procs_wanted {wanted}")
    source = rig.opened()
    rig.until(source, lambda board: {"temp_c", "nvlink_links"} <= set(board.gpus[0].values) and "procs" in board.gpus[1].values)
    assert rig.gpu().missing["procs"] == "the driver failed: Insufficient Size"


def test_what_nobody_foresaw_costs_the_reading_that_met_it(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(number: float) -> float:
        raise ZeroDivisionError(f"odd {number:g}")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(numbers, "celsius", odd)
    rig.set("gpus 2", "util 50")
    source = rig.opened()
    rig.until(source, lambda board: "temp_c" in board.gpus[0].missing and "pcie_gen" in board.gpus[1].values)
    assert rig.gpu().missing["temp_c"].startswith("this is a bug: ZeroDivisionError: odd 40")
    assert rig.gpu().values["util_pct"] == 50.0
    assert "in way" in crash.read_log()


def test_a_bug_in_a_lane_costs_its_gpu(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(gpu: WatchedGpu, _poller: object, poll: Poll) -> None:
        if not gpu.index:
            raise ZeroDivisionError("odd")
        gpu.polls.append(poll)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(WatchedGpu, "_add", odd)
    rig.set("gpus 2", "util 50")
    source = rig.opened()
    rig.until(source, lambda board: "this is a bug" in board.gpus[0].missing["util_pct"] and board.gpus[1].values["util_pct"] == 50.0)
