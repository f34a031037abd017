"""What the tracks keep of a GPU's readings."""

from __future__ import annotations

from gputop.diagnosis.facts.tracks import GpuTrack
from gputop.model.board import GpuBoard
from gputop.model.frame import SECOND_NS, Gpu


def test_the_drivers_own_rates_of_pcie_count_while_its_counters_fail() -> None:
    board, track = GpuBoard(0), GpuTrack()

    def told(second: int, **values: object) -> float | None:
        t_ns = second * SECOND_NS
        board.fold(Gpu(0, t_ns, util_pct=50.0, **values))  # type: ignore[arg-type]
        track.push(board, t_ns, 0)
        return track.facts(0).host_bytes_per_s

    for second in range(1, 5):
        by_counters = told(second, pcie_rx_bytes=second << 30, pcie_tx_bytes=0)
    assert by_counters == 1 << 30
    assert told(5, missing={"pcie_rx_bytes": "the driver timed out"}, pcie_rx_bytes_per_s=2e9, pcie_tx_bytes_per_s=1e9) == 3e9
    told(6, pcie_rx_bytes=20 << 30, pcie_tx_bytes=0)
    assert told(7, pcie_rx_bytes=25 << 30, pcie_tx_bytes=0) == 5 << 30
