"""What holds a GPU back, in words."""

from __future__ import annotations

import pytest

from gputop.model.board import GpuBoard
from gputop.model.fields import limits


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, None),
        ({"throttle_mask": 0x1, "ecc_uncorrected": 0, "remap_pending": False}, []),
        ({"throttle_mask": 0xE01}, ["board limit", "reliability", "reason 0x800"]),
        ({"throttle_mask": 0x4F}, ["thermal (HW)", "HW slowdown", "power cap", "app clocks"]),
        (
            {"throttle_mask": 0x4, "ecc_uncorrected": 7, "remap_pending": True, "remap_failed": False, "xid": 48},
            ["Xid 48", "7 ECC errors", "row remap pending", "power cap"],
        ),
        ({"ecc_uncorrected": 1, "xid": 79, "remap_failed": True}, ["Xid 79", "1 ECC error", "row remap failed"]),
    ],
)
def test_errors_come_first_then_the_worst_reason(values: dict[str, object], words: list[str] | None) -> None:
    gpu = GpuBoard(0)
    gpu.values |= values
    assert limits(gpu) == words
