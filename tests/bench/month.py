"""A month in a bound: what `gputop record --keep 30d --max-size 1G` leaves of 30 made-up days, and how fast that is explained and read.

The days are made (`tests.recording.made`) and written by the recorder's own writer in made-up time: every 100 ms for 90 s around each
incident and in the last hours, every second in the last days, every minute before, where the bound leaves minutes anyway.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gputop.model.frame import SECOND_NS, Frame
from gputop.recording.format import MINUTES, SECONDS, TICKS
from gputop.recording.keep import Keeping
from gputop.recording.reader import Recording
from gputop.stream.kept import FindingsBlock, rules
from tests.bench.explain_cost import waited
from tests.bench.figures import spread
from tests.recording.made import HEADER, MS, START_NS, Session

DAY_S = 86_400
BOUND = 1 << 30
AROUND_S = 45  # of 100 ms before and after the middle of an incident


def report(days: int = 30, incidents: int = 200, fine_days: float = 2.0, fine_hours: float = 2.0, bound: int = BOUND) -> Iterator[str]:
    """A paragraph of Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "month.gputop"
        times = [DAY_S * days * (i + 0.5) / incidents for i in range(incidents)]
        frames, most, stalls = record(path, days, times, fine_days, fine_hours, bound)
        explain_s = [waited(path, []) for _ in range(3)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        with Recording(str(path)) as recording:
            open_s = time.process_time() - began
            seeks = [sought(recording, part / 40) for part in range(1, 40)]
            grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            tiers = ("ticks", TICKS), ("seconds", SECONDS), ("minutes", MINUTES)
            shares = ", ".join(f"{name} of {hours(recording, tier):.0f} h" for name, tier in tiers)
            near = sum(recording.tier_at(START_NS + int(at * SECOND_NS)) == TICKS for at in times)
        yield (
            f"## {days} days of 8 GPUs and 80 processes with {incidents} incidents within {bound / 1e6:.0f} MB\n\n"
            f"{frames} frames leave {path.stat().st_size / 1e6:.0f} MB: {shares}; {near} incidents have their ticks. File and copy took "
            f"{most / 1e6:.0f} MB at most; the longest stall of a frame was {max(stalls) * 1e3:.0f} ms. "
            f"Explained in {spread(explain_s, 2)} s, opened in {open_s:.2f} s of CPU; the slowest of {len(seeks)} seeks took "
            f"{max(seeks):.2f} s of CPU; memory grew by {grown_mb:.0f} MB."
        )


def made(days: int, times: list[float], fine_days: float, fine_hours: float) -> Iterator[Frame]:
    """The frames; a key frame every 10 s or with each frame that comes less often."""
    session, end_s, i, key_s = Session(8, 80, threads=8, probes=False), days * DAY_S, 0, -10.0
    at_s = 0.0
    while at_s < end_s:
        while i < len(times) and times[i] + AROUND_S < at_s:
            i += 1
        is_near = i < len(times) and at_s >= times[i] - AROUND_S
        step_s = 0.1 if is_near or at_s > end_s - 3600 * fine_hours else 1.0 if at_s > end_s - DAY_S * fine_days else 60.0
        if not is_near and i < len(times):
            step_s = min(step_s, max(0.1, times[i] - AROUND_S - at_s))
        at_s += step_s
        is_key = at_s - key_s >= 10.0
        key_s = at_s if is_key else key_s
        yield session.frame(round(step_s * 1000) * MS, is_key)


def record(path: Path, days: int, times: list[float], fine_days: float, fine_hours: float, bound: int) -> tuple[int, int, list[float]]:
    """As `gputop record` does; how many frames there were, the most bytes on the disk, and the seconds that key frames took to write."""
    now_s = 0.0

    def told() -> bytes:
        episodes = [episode(number, at) for number, at in enumerate(times, 1) if at < now_s]
        said = {"symptom": "input-bound", "cause": "slow-disk", "headline": "made", "detail": "", "steps_per_s": None, "step_ms": None}
        said |= {"path": [], "regain_gpu_s": None, "speedup_max": None}
        ledger = {"gpu_total_s": now_s * 8, "gpu_lost_s": 20.0 * len(episodes), "by_cause": {"slow-disk": 20.0 * len(episodes)}}
        ledger |= {"regain": [], "speedup_max": None}
        explanation = {"schema": 1, "verdict": said, "ledger": ledger, "workers": {}, "incidents": episodes, "what_if": [], "trainers": []}
        return msgspec.msgpack.encode(FindingsBlock(rules(), START_NS, START_NS + int(now_s * SECOND_NS), explanation))  # type: ignore[arg-type]

    files = Keeping(str(path), HEADER, max_bytes=bound, keep_ns=30 * DAY_S * SECOND_NS, begin=lambda: told)
    count, most, stalls = 0, 0, []
    for frame in made(days, times, fine_days, fine_hours):
        now_s = (frame.t_ns - START_NS) / SECOND_NS
        began = time.monotonic()
        files.add(frame)
        if frame.key:
            stalls.append(time.monotonic() - began)
            most = max(most, sum(one.stat().st_size for one in path.parent.glob("*.gputop*")))
        count += 1
    files.close()
    return count, most, stalls


def episode(number: int, at_s: float) -> dict[str, object]:
    """An incident of 30 s in findings."""
    start_s = HEADER.unix_ns / 1e9 + at_s - 15
    evidence = [{"metric": "disk", "value": 1.0, "unit": "s", "text": "the disk was slow"}] * 3
    return {
        "id": number, "start_unix_s": start_s, "end_unix_s": start_s + 30, "symptom": "input-bound", "cause": "slow-disk",
        "severity": "high", "confidence": 0.9, "trainer_pid": 3000, "gpu": 0, "gpu_lost_s": 20.0, "headline": f"incident {number}",
        "detail": "made up", "victims": [{"pid": 3000, "role": "trainer", "name": "python3"}], "evidence": evidence,
        "culprits": [{"pid": 3007, "name": "python3", "cpu_s": 9.0}], "fixes": [{"text": "read less", "command": "iostat"}],
        "path": [{"pid": 3000, "name": "python3", "share": 0.7, "state": "disk", "on": "sda", "measured": True}],
        "regain_gpu_s": 20.0, "speedup_max": 3.0,
    }  # fmt: skip


def sought(recording: Recording, part: float) -> float:
    """CPU seconds until the board at a part of the time is there."""
    began = time.process_time()
    recording.board_at(recording.start_ns + int((recording.end_ns - recording.start_ns) * part))
    return time.process_time() - began


def hours(recording: Recording, tier: int) -> float:
    """How much of the recording is told at best by a tier."""
    chunks = recording.chunks(TICKS)
    edges = [*(chunk.t_ns for chunk in chunks), recording.end_ns]
    return sum(edges[i + 1] - edges[i] for i, chunk in enumerate(chunks) if chunk.tier == tier) / SECOND_NS / 3600
