"""From frames to columns: what of each tick goes into the history.

A new series is a new ``observe`` here, a line in `OBSERVERS` and a line in `gputop.model.fields`. Observers run *before* the frame
is folded: the board is the older moment, the frame the newer one. Only fresh readings are put; two ticks that saw the same
reading of a driver are one measurement.
"""

from __future__ import annotations

from collections.abc import Callable

from gputop.history import gpu, host, probes, workers
from gputop.history.columns import History
from gputop.model.board import Board
from gputop.model.frame import Frame

Observer = Callable[[Board, Frame, History], None]

OBSERVERS: tuple[Observer, ...] = (gpu.observe, host.observe, workers.observe, probes.observe)
