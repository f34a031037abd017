"""The beat under load: how late ticks are beside CPU hogs, and that none is silently missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from gputop.model.frame import Frame
from gputop.recording.chunks import Decoder
from tests.bench.crowd import crowd
from tests.bench.figures import quantile, table
from tests.bench.live_cost import GPUTOP

HOGS_PER_CPU = 8
_WITHOUT_SYS_NICE = ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]


@dataclass(slots=True)
class Collected:
    """The frames of one `gputop collect`, each with the moment (CLOCK_MONOTONIC, ns) at which it was read here."""

    frames: list[Frame] = field(default_factory=list)

    @property
    def steady(self) -> list[Frame]:
        """The frames after the first second, in which sources are opened."""
        return [frame for frame in self.frames if frame.t_ns >= self.frames[0].t_ns + 1_000_000_000]

    def skipped(self) -> int:
        """Steady ticks that the collector says it skipped."""
        return sum(frame.missed for frame in self.steady[1:])

    def unaccounted(self, interval_ns: int = 100_000_000) -> int:
        """Steady deadlines that neither a frame nor a frame's ``missed`` accounts for."""
        first, last = self.steady[0], self.steady[-1]
        beats = round(((last.t_ns - last.late_ns) - (first.t_ns - first.late_ns)) / interval_ns)
        return beats - (len(self.steady) - 1) - self.skipped()


def collect(env: dict[str, str], seconds: float, prefix: list[str] | None = None, *arguments: str) -> Collected:
    """Run the collector for ``seconds`` and decode what it writes."""
    decoder, collected = Decoder(), Collected()
    command = [*(prefix or []), *GPUTOP, "collect", *arguments]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        stopper = threading.Timer(seconds, process.terminate)
        stopper.start()
        while data := os.read(process.stdout.fileno(), 1 << 16):
            collected.frames += [item for item in decoder.feed(data) if isinstance(item, Frame)]
        stopper.cancel()
    return collected


def report(run_s: float = 20.0) -> Iterator[str]:
    """The table."""
    hogs = HOGS_PER_CPU * (os.cpu_count() or 1)
    variants = {"may raise its priority": None, "may not (no CAP_SYS_NICE)": _WITHOUT_SYS_NICE}
    rows = []
    for name, prefix in variants.items():
        if prefix and not shutil.which(prefix[0]):
            rows.append([name, f"not measured: {prefix[0]} is missing"])
            continue
        with crowd(hogs, busy_us=-1, life_s=int(run_s) + 30):
            time.sleep(1)
            collected = collect(dict(os.environ), run_s, prefix)
        late = [frame.late_ns / 1e6 for frame in collected.steady]
        rows.append([name, len(late), *(f"{quantile(late, q):.2f}" for q in (0.5, 0.99, 1)), collected.skipped(), collected.unaccounted()])
    yield f"## Beat beside {hogs} CPU hogs ({HOGS_PER_CPU} per CPU, {run_s:g} s)"
    yield table(["collector", "ticks", "late p50 ms", "p99 ms", "max ms", "skipped and counted", "unaccounted"], rows)
