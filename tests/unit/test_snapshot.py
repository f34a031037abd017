"""One moment as `gputop --json` prints it: what is null has a reason."""

from __future__ import annotations

from gputop import snapshot
from gputop.board import Board
from gputop.frame import Frame
from gputop.frame import Gpu
from gputop.frame import ProcInfo
from gputop.frame import ProcSample
from gputop.frame import SourceState


def taken(*gpus: Gpu, detail: dict[str, str] | None = None) -> dict:
    """What is printed of these samples, and of a process with a GPU beside them."""
    board = Board()
    procs = [ProcSample(7, 1, 5, "S", 0, 0, 0, 1)]
    sources = [SourceState("procfs", "ok", detail=detail or {})]
    board.fold(Frame(0, 9, key=True, gpus=list(gpus), infos=[ProcInfo(7, 1)], procs=procs, sources=sources))
    return snapshot.take(board, board, {}, {}, frozenset((7,)))


def test_a_gpu_without_utilization_was_read_when_the_rest_was() -> None:
    gpu = taken(Gpu(0, 3, temp_c=40.0), Gpu(0, 4, power_w=99.0, missing={"util_pct": "not supported"}))["gpus"][0]
    assert gpu["t_ns"] == 4


def test_what_is_made_of_a_reading_shares_its_reason() -> None:
    why = {"throttle_mask": "not supported", "nvlink_tx_bytes": "no NVLink is up"}
    gpu = taken(Gpu(0, 3, pcie_tx_bytes=10, missing=why))["gpus"][0]
    assert gpu["limits"] is None
    assert gpu["missing"] == why | {
        "limits": "not supported", "nvlink_tx_bytes_per_s": "no NVLink is up", "nvlink_rx_bytes_per_s": "not yet: the look was too short",
        "pcie_tx_bytes_per_s": "not yet: the look was too short", "pcie_rx_bytes_per_s": "not yet: the look was too short",
    }  # fmt: skip


def test_what_has_a_value_is_not_missing() -> None:
    gpu = taken(Gpu(0, 3, throttle_mask=0, pcie_tx_bytes_per_s=1.0, missing={"pcie_tx_bytes": "not supported"}))["gpus"][0]
    assert gpu["limits"] == []
    assert not {"limits", "pcie_tx_bytes_per_s"} & gpu["missing"].keys()


def test_a_kernel_that_measures_no_delays_says_so_of_each_process() -> None:
    assert taken(detail={"blkio_delay_ns": "switched off"})["procs"][0]["missing"] == {"disk_pct": "switched off"}
    assert taken()["procs"][0]["missing"] == {}
