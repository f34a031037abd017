"""A key frame where the stream has none: what a file begins with that goes on in the middle of a chunk."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec.structs import replace

from gputop.model.board import Board, GpuBoard
from gputop.model.frame import Frame, Gpu, Probes


def key_frame(board: Board, frame: Frame) -> Frame:
    """``frame``, the last that ``board`` has taken in, with all that stands besides: each at its own time, as far as it has one.

    The machine's slow readings have none; they are read again within a second.
    """
    return replace(
        frame, key=True, infos=list(board.infos.values()), procs=list(board.procs.values()), sources=list(board.sources.values()),
        gpus=[sample for gpu in board.gpus.values() for sample in _samples(gpu)],
        sampled=list(board.sampled.values()), servings=list(board.servings.values()),
        collectives=list(board.collectives.values()), driver_errors=list(board.driver_errors.values()),
        probes=_probes(board, frame.probes or Probes(board.probed_ns, share=board.switch_share)) if board.probed_ns else None,
    )  # fmt: skip


def _samples(gpu: GpuBoard) -> list[Gpu]:
    """Latest readings of a GPU as samples, one for each time of reading, oldest first."""
    values: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for name, t_ns in gpu.read_ns.items():
        values[t_ns][name] = gpu.values[name]
    samples = [Gpu(gpu.index, t_ns, **values[t_ns]) for t_ns in sorted(values)] or [Gpu(gpu.index, 0)]
    return [*samples[:-1], replace(samples[-1], missing=dict(gpu.missing))]


def _probes(board: Board, told: Probes) -> Probes:
    """Sums go on; a longest wait, and an end, are sent once."""
    tids, calls = {thread.tid for thread in told.threads}, {(call.pid, call.call) for call in told.calls}
    return replace(
        told,
        threads=[
            thread if thread.tid in tids else replace(thread, max_run_delay_ns=0)
            for thread in board.threads.values() if thread.tid in tids or thread.state != "dead"
        ],
        preempts=list(board.preempts.values()), wakeups=list(board.wakeups.values()),
        calls=[call if key in calls else replace(call, max_ns=0) for key, call in board.calls.items()],
        launches=list(board.launches.values()), thread_calls=list(board.thread_calls.values()),
    )  # fmt: skip
