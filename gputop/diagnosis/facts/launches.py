"""Activity of the GPUs while a main thread launches kernels, if its calls are sampled.

A main thread that launches too slowly leaves its GPU without work. If the GPU works all the time, a launch takes long because
the queue is full, and the GPU's waits at other times have another reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence

from gputop.findings import policy
from gputop.model.frame import MainSamples

TOLD_NS = 100_000_000  # ns after which a burst of samples is reported at the latest: at the next beat

Busy = Sequence[tuple[int, float]]  # (t_ns, per cent of the time up to t_ns in which kernels ran) of a GPU


class Launches:
    """Bursts of samples of each main thread over the window."""

    def __init__(self) -> None:
        self._last: dict[int, MainSamples] = {}
        self._bursts: defaultdict[int, deque[tuple[int, int, int]]] = defaultdict(deque)
        """Pid -> (begin, end, ns spent launching) of each burst."""

    def note(self, t_ns: int, told: Iterable[MainSamples]) -> None:
        """Take in the samples reported at ``t_ns``."""
        for one in told:
            old, self._last[one.pid] = self._last.get(one.pid) or MainSamples(one.pid), one
            watched_ns, launch_ns = one.watched_ns - old.watched_ns, max(0, one.launch_ns - old.launch_ns)
            if 0 < watched_ns < (policy.BURST_SPAN_NS if not old.watched_ns else t_ns):
                began_ns = t_ns - TOLD_NS - watched_ns
                self._bursts[one.pid].append((began_ns, t_ns, launch_ns))

    def forget(self, oldest_ns: int, pids: Collection[int]) -> None:
        """Drop bursts from before the window, and all of processes that are not in ``pids``."""
        for pid in self._last.keys() - pids:
            del self._last[pid]
            self._bursts.pop(pid, None)
        for bursts in self._bursts.values():
            while bursts and bursts[0][1] <= oldest_ns:
                bursts.popleft()

    def idle_beside(self, pid: int, gpus: Sequence[Busy]) -> float | None:
        """Share of the time spent launching in which the GPUs ran nothing; None without a reading in it.

        Bursts in which a GPU begins or ends its work are left out: it is unknown in which part the launches were. So is a burst with
        readings still missing, if there are others.
        """
        newest_ns = min((readings[-1][0] if readings else 0 for readings in gpus), default=0)
        columns = [([t_ns for t_ns, _ in readings], [pct for _, pct in readings]) for readings in gpus]
        known: list[tuple[int, float]] = []
        new: list[tuple[int, float]] = []
        for began_ns, ended_ns, launch_ns in self._bursts.get(pid, ()):
            if not launch_ns:
                continue
            met: list[float] = []
            for read_ns, pcts in columns:
                met += pcts[bisect_right(read_ns, began_ns) : bisect_right(read_ns, ended_ns + TOLD_NS)]
            if met and max(met) - min(met) < 100 * policy.HALF:
                told = known if newest_ns >= ended_ns + TOLD_NS // 2 else new
                told.append((launch_ns, launch_ns * (1.0 - sum(met) / len(met) / 100)))
        told = known or new
        return sum(idle_ns for _, idle_ns in told) / sum(launch_ns for launch_ns, _ in told) if told else None
