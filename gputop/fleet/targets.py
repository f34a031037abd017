"""Machines to watch: a list's, a Slurm job's, or the pods of a selector."""

from __future__ import annotations

import os
import time
from glob import escape, glob

from gputop.stream.playback import Playback, PlayedClock
from gputop.stream.reach import Target, hosts, kubectl, srun
from gputop.system.errors import UserError
from gputop.system.text import clean

LEAST_LEFT_S = 5.0  # s before the end that a jump goes to at most: a verdict needs a window
STARTS_S = 1.0  # s until the players run: nothing of the beginning is played in haste


def by_names(text: str | None, path: str | None) -> list[Target]:
    """The machines of a typed list of hosts and of a file of hosts, each once, over ssh. UserError if a list cannot be read."""
    named = (hosts.expand(text, typed=True) if text is not None else []) + (hosts.read(path) if path is not None else [])
    return [Target(name) for name in dict.fromkeys(named)]


class RecordingsFolder:
    """Recordings of a folder as machines, all played by the same clock. UserError without any, or if one cannot be read."""

    def __init__(self, folder: str, at: str | None = None, speed: float = 1.0, *, loop: bool = False) -> None:
        """``at``: the moment to begin with, as `gputop.stream.moment` reads it; without it the earliest beginning."""
        from gputop.recording.parts import open_recording
        from gputop.stream.moment import moment_within
        from gputop.stream.played import parts_of

        firsts = sorted(path for path in glob(os.path.join(escape(folder), "*.gputop")) if parts_of(path)[0] == path)
        if not firsts:
            raise UserError(f"{clean(folder)} holds no recordings: gputop record --host LIST -o {clean(folder)} makes them")
        if len(firsts) > hosts.MOST_HOSTS:
            raise UserError(f"{clean(folder)} holds more than {hosts.MOST_HOSTS} recordings")
        self._paths = firsts
        begins, ends, wanted = list[float](), list[float](), list[float]()
        for path in firsts:
            with open_recording(parts_of(path)) as recording:
                begins.append(recording.unix_ns_of(recording.start_ns) / 1e9)
                ends.append(recording.unix_ns_of(recording.end_ns) / 1e9)
                wanted.append(recording.unix_ns_of(recording.start_ns if at is None else moment_within(at, recording)) / 1e9)
        self._begin_s, self._end_s = min(begins), max(ends)  # by their wall clocks
        self.playback = Playback(0, speed, loop=loop)
        self.go_to(min(wanted))

    @property
    def now_s(self) -> float:
        """Time on the clocks of the recorded machines, Unix seconds."""
        return min(self.clock.at(time.time()), self._end_s)

    @property
    def span_s(self) -> tuple[float, float]:
        """The earliest beginning and the latest end, on the same clocks."""
        return self._begin_s, self._end_s

    def go_to(self, unix_s: float) -> None:
        """Go to a moment of the recorded machines' clocks, or to the nearest end. The players have to be started again."""
        self.clock = PlayedClock(time.time() + STARTS_S, max(self._begin_s, min(unix_s, self._end_s - LEAST_LEFT_S)), self._speed)

    def turn(self) -> None:
        """Go on as ``playback`` now says: its speed, whether it plays. The players have to know the new clock."""
        self.clock = PlayedClock(time.time(), self.now_s, self._speed)

    @property
    def is_over(self) -> bool:
        """True if all recordings have been played to the end."""
        return self.now_s >= self._end_s

    @property
    def _speed(self) -> float:
        return self.playback.speed if self.playback.playing else 0.0

    def files(self, host: str) -> list[str]:
        """The files of a machine's recording, in order."""
        from gputop.stream.played import parts_of

        return parts_of(next(path for path in self._paths if _name(path) == host))

    def targets(self) -> list[Target]:
        """The machines at the moment that is now."""
        return [Target(_name(path), "file", f"{self.clock.text}:{path}") for path in self._paths]


def _name(path: str) -> str:
    return os.path.basename(path).removesuffix(".gputop")


def targets(
    *, job: str | None = None, pods: str | None = None, namespace: str = "", way: str = "srun"
) -> list[Target]:
    """Nodes of a Slurm job, or the pods with these labels. UserError without any.

    ``job``: its number, empty for the one that this runs in. ``way``: ``srun`` or ``ssh`` to its nodes.
    """
    if pods is not None:
        return [Target(pod, "kubectl", namespace) for pod in kubectl.pods(pods, namespace)]
    number = srun.number_of(job or "")
    return [Target(node, way, number if way == "srun" else "") for node in srun.nodes(number)]
