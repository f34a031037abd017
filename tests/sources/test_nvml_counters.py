"""Slow counters by field numbers: links, clocks, health; each by its own number, all in one call, and a reason where there is none."""

from __future__ import annotations

import time

from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml.counters import FIELDS, OF_GPU, OF_LINK, ROWS, Counters
from gputop.sources.nvml.driver import Device, Meter
from tests.sources.nvml_rig import Rig


def counters(rig: Rig, *lines: str) -> tuple[dict[str, object], dict[str, str]]:
    rig.set("gpus 1", *lines)
    source = rig.opened()
    rig.until(source, lambda board: any(name in board.gpus[0].values or name in board.gpus[0].missing for name in FIELDS))
    return rig.gpu().values, rig.gpu().missing


def test_the_table_names_each_quantity_once_and_says_where_it_is_from() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    every = [number for row in ROWS for number in row.numbers]
    assert len(set(every)) == len(every)
    assert all(row.constants.startswith("NVML_FI_") and row.since.startswith("R") for row in ROWS)


def test_a_sick_link_is_found_among_eighteen(rig: Rig) -> None:
    found, _ = counters(rig, "bad_link 14", "link_recoveries 505", "link_replays 7", "link_crc 3")
    assert (found["nvlink_recoveries"], found["nvlink_replays"], found["nvlink_crc_errors"]) == (505, 7, 3)
    links = found["nvlinks"]
    assert isinstance(links, list)
    assert [(one.link, one.recoveries) for one in links if one.recoveries] == [(14, 505)]
    assert len(links) == 18


def test_blackwell_has_other_numbers_and_a_bit_error_rate(rig: Rig) -> None:
    found, missing = counters(rig, "arch 10", "bad_link 2", "link_recoveries 4", f"link_ber {2 << 8 | 13}")
    links = found["nvlinks"]
    assert isinstance(links, list)
    assert (links[2].recoveries, links[2].bit_error_rate, links[3].recoveries) == (4, 2e-13, 0)
    assert "not supported" in missing["nvlink_replays"]


def test_time_of_slow_clocks_replays_and_what_the_driver_asks_for(rig: Rig) -> None:
    states = "slowed_power_ms 1500", "slowed_heat_ms 20", "slowed_brake_ms 3", "pcie_replays 9", "recovery_action 1", "smoothing 1"
    found, _ = counters(rig, *states)
    names = ("slowed_power_ns", "slowed_heat_ns", "slowed_brake_ns", "pcie_replays", "recovery_action", "power_smoothing")
    assert [found[name] for name in names] == [1_500_000_000, 20_000_000, 3_000_000, 9, 1, True]


def test_a_field_that_is_refused_has_its_reason_and_the_others_their_values(rig: Rig) -> None:
    found, missing = counters(rig, "error.Field94 NOT_SUPPORTED", "error.Field251 NOT_SUPPORTED", "nvlinks 0", "slowed_heat_ms 8")
    assert "not supported" in missing["pcie_replays"]
    assert found["slowed_heat_ns"] == 8_000_000  # by the older number
    assert missing["nvlinks"] == "no NVLink"
    assert missing["nvlink_recoveries"] == "no NVLink"
    assert found["pcie_recoveries"] == 0


def test_one_call_reads_all_and_what_is_refused_is_left_out_of_the_next(rig: Rig) -> None:
    rig.set("gpus 1")
    rig.opened()
    device = Device(nvml.nvmlDeviceGetHandleByIndex(0), Meter())
    way = Counters(device)
    before = device.meter.calls
    way({}, {})
    assert device.meter.calls == before + 1
    everything = sum(len(row.numbers) for row in OF_GPU) + 18 * sum(len(row.numbers) for row in OF_LINK)
    assert len(way._wanted) <= everything - 18 * 5  # newer ones of each link
    way({}, {})
    assert device.meter.calls == before + 2


def test_it_costs_little(rig: Rig) -> None:
    """Eight GPUs in 10 s: 0.2 % of a core is 2.5 ms a reading."""
    rig.set("gpus 1")
    rig.opened()
    way = Counters(Device(nvml.nvmlDeviceGetHandleByIndex(0), Meter()))
    way({}, {})
    spent = []
    for _ in range(20):
        began_ns = time.thread_time_ns()
        way({}, {})
        spent.append(time.thread_time_ns() - began_ns)
    assert min(spent) < 2_500_000
