"""What recording costs: time per frame, bytes per hour, opening, seeking and asking a long file, the ten minutes in memory.

The sessions are made (`tests.recording.made`): half of the workers are on a CPU at any moment, every counter of theirs moves in every
tick, at random. Times are CPU time of this process, so that other work on the machine does not count.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

from gputop.model.board import Board
from gputop.model.frame import Frame
from gputop.recording.format import FLAG_KEY, KIND_FRAMES, pack
from gputop.recording.reader import Recording
from gputop.recording.ring import Ring
from gputop.recording.scan import Index, pack_index, payload_at, places
from gputop.recording.writer import Writer
from gputop.tables.database import Database
from tests.bench import recording_live
from tests.recording.made import HEADER, SECOND, Session

SHAPES = {
    "1 GPU, 10 processes": (1, 10, False),
    "1 GPU, 10 processes, probes": (1, 10, True),
    "8 GPUs, 80 processes": (8, 80, False),
    "8 GPUs, 80 processes, probes": (8, 80, True),
}
WINDOWS = "SELECT CAST(t_s / 10 AS INT) w, sum(switches), sum(runq_s) FROM proc GROUP BY w"
HOUR_TICKS = 36_000


def report(ticks: int = 3000, runs: int = 2, run_s: float = 20.0) -> Iterator[str]:
    """Paragraphs of Markdown; ``ticks`` of 100 ms are recorded of each shape, real processes for ``runs`` times ``run_s``."""
    with tempfile.TemporaryDirectory() as folder:
        yield "## Recording"
        titles = "| session | write, ms/frame | MB/hour | read, ms/frame | ring, µs/frame | ring, MB for 10 min |"
        rows = [titles, "|---|--:|--:|--:|--:|--:|"]
        rows += [shape_row(name, Path(folder), ticks) for name in SHAPES]
        yield "\n".join(rows)
        yield long_file(Path(folder), Path(folder) / "8 GPUs, 80 processes.gputop")
    yield from recording_live.report(runs, run_s)


def shape_row(name: str, folder: Path, ticks: int) -> str:
    """One line of the table."""
    frames = list(Session(*SHAPES[name][:2], threads=8, probes=SHAPES[name][2]).frames(ticks))
    path = folder / f"{name}.gputop"
    writer, ring = Writer(str(path), HEADER), Ring(HEADER)
    write_s = spent(lambda: feed(writer.add, frames))
    keep_s = spent(lambda: feed(ring.add, frames))
    writer.close()
    hour_mb = path.stat().st_size * HOUR_TICKS / ticks / 1e6
    with Recording(str(path)) as recording:
        read_s = spent(lambda: sum(1 for _ in recording.frames()))
    cells = [f"{write_s / ticks * 1e3:.2f}", f"{hour_mb:.1f}", f"{read_s / ticks * 1e3:.2f}", f"{keep_s / ticks * 1e6:.0f}",
             f"{ring.held_bytes * 6000 / ticks / 1e6:.1f}"]  # fmt: skip
    return f"| {name} | {' | '.join(cells)} |"


def feed(add: Callable[[Frame], None], frames: list[Frame]) -> None:
    """All frames, as they would come."""
    for frame in frames:
        add(frame)


def spent(action: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    before = time.process_time()
    action()
    return time.process_time() - before


def long_file(folder: Path, source: Path) -> str:
    """A day made of one recording's blocks over and over, at ever later times; the times within blocks stay, which no seek looks at."""
    path = folder / "day.gputop"
    stretch(source, path, 24 * 3600)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opened: list[Recording] = []
    open_s = spent(lambda: opened.append(Recording(str(path))))
    recording = opened[0]
    span = recording.end_ns - recording.start_ns
    times = [recording.start_ns + int(span * part) for part in (0.9, 0.1, 0.5, 0.11, 0.999)]
    seeks = [spent(lambda t_ns=t_ns: seek(recording, t_ns)) for t_ns in times]  # type: ignore[misc]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    recording.close()
    with Recording(str(source)) as short:
        ticks = max(1, (short.end_ns - short.start_ns) // (SECOND // 10))
        ask_s = spent(lambda: list(Database(short).ask(WINDOWS)[1])) * HOUR_TICKS / ticks
    return (
        f"A day of 8 GPUs and 80 processes ({os.stat(path).st_size / 1e6:.0f} MB) opens in {open_s:.2f} s; the slowest of five seeks takes "
        f"{max(seeks):.2f} s; memory grows by {grown:.0f} MB. Sums in windows of 10 s over an hour of it: {ask_s:.1f} s."
    )


def seek(recording: Recording, t_ns: int) -> None:
    """As `Recording.board_at` reads: the whole chunk up to the moment, folded."""
    chunks = recording.chunks()
    at = max(0, bisect_right(chunks, t_ns, key=lambda chunk: chunk.t_ns) - 1)
    board = Board(header=recording.header)
    for block in chunks[at].blocks():
        for frame in block.frames():
            board.fold(frame)


def stretch(source: Path, path: Path, seconds: int) -> None:
    """Repeat the blocks of ``source`` until they fill ``seconds``, with an index as a writer leaves it."""
    fd = os.open(source, os.O_RDONLY)
    found = list(places(fd, 8, source.stat().st_size))
    blocks = [(place.head, payload_at(fd, place)) for place in found if place.head.kind == KIND_FRAMES]
    data = os.pread(fd, next(place.offset for place in found if place.head.kind == KIND_FRAMES), 0)
    os.close(fd)
    chunks: list[tuple[int, int]] = []
    previous = 0
    with open(path, "wb") as file:
        file.write(data)
        for second, (head, payload) in enumerate(cycle(blocks)):
            t_ns = blocks[0][0].t_ns + second * SECOND
            if head.flags & FLAG_KEY:
                if len(chunks) >= 32:
                    index = pack_index(Index(previous, chunks, [], t_ns))
                    previous, chunks = file.tell(), []
                    file.write(index)
                chunks.append((t_ns, file.tell()))
            if second > seconds:
                return
            file.write(pack(head.kind, payload, flags=head.flags, t_ns=t_ns))
