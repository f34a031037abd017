"""Columns of trainers and their workers together, from /proc alone, subject 0.

Main threads only, since a worker's helper threads wait too and would push its share over 100 %.
"""

from __future__ import annotations

from gputop.history.columns import History
from gputop.model.board import Board
from gputop.model.frame import Frame


def observe(board: Board, frame: Frame, history: History) -> None:
    """Run-queue share, off-CPU share and context switches of those that are read each tick."""
    runq = oncpu = span = 0
    switches = 0.0
    switched = count = 0
    for new in frame.procs:
        old = board.procs.get(new.pid)
        if not new.threads or old is None or old.start_ticks != new.start_ticks or new.t_ns <= old.t_ns:
            continue
        if new.run_delay_ns is None or old.run_delay_ns is None or new.oncpu_ns is None or old.oncpu_ns is None:
            continue
        count += 1
        span += new.t_ns - old.t_ns
        runq += new.run_delay_ns - old.run_delay_ns
        oncpu += new.oncpu_ns - old.oncpu_ns
        if new.vol is not None and old.vol is not None and new.invol is not None and old.invol is not None:
            switched += 1
            switches += (new.vol - old.vol + new.invol - old.invol) * 1e9 / (new.t_ns - old.t_ns)
    if count:
        history.put("runq.pct", 0, min(100.0, 100 * runq / span))
        history.put("offcpu.pct", 0, max(0.0, 100 - 100 * oncpu / span))
    if switched:
        history.put("switches.per_s", 0, switches)
