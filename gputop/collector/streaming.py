"""A collector that writes its stream to standard output, until its reader closes the pipe or a signal comes."""

from __future__ import annotations

import sys

from gputop.collector.beat import Collector, make_header
from gputop.recording.pipe import PipeSink, ReaderGone
from gputop.sources import Settings
from gputop.system.console import notify
from gputop.system.ending import Ending
from gputop.system.program import calm_garbage_collection

LAST_S = 0.5  # s for a slow reader to take the last frames after a signal; after ``ticks`` it may take any time


def stream(settings: Settings, ticks: int | None = None) -> None:
    """Collect until the reader closes the pipe, a signal comes, or for ``ticks`` ticks."""
    calm_garbage_collection()
    try:
        sink = PipeSink(sys.stdout.fileno(), make_header(settings))
        collector = Collector(settings, sink, leaves_root=True, relays=True)
        Ending(collector.stop).listen()
        collector.run(ticks, sink.wait)
        while not collector.stopping and sink.close(LAST_S):
            pass
        if left := sink.close(LAST_S):
            notify(f"the reader is too slow: the last {left} bytes were not read, and the stream ends within a frame")
    except ReaderGone:
        pass
