"""A trace of torch.profiler that is taken by itself, once a job has lost GPU time on the GPU's own side for half a minute."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence

from gputop.diagnosis import Engine
from gputop.findings.verdict import Incident
from gputop.model.board import Board
from gputop.model.frame import TracedJob
from gputop.model.trace import BY_GPUTOP
from gputop.system import config, crash
from gputop.system.errors import UserError, starting

LASTS_NS = 30_000_000_000  # ns that an incident has lasted: a shorter one may be an evaluation or a checkpoint (a choice)
GAP_NS = 3_600_000_000_000  # ns from one trace of a job to the next
SECONDS = 0.5  # s of a trace: a few steps, half a MB
MOST_RANKS = 8  # ranks of a job that are asked together (a choice)
MOST_BYTES = 512 << 20  # of all traces that are taken by themselves beside one recording
MOST_FILES = 8  # traces that are kept where nothing is recorded (a choice)
GPU_SIDE = ("small-kernels", "sync-storm", "h2d-transfer", "undersized-work", "slow-wire", "comm-fallback", "unexplained")
"""Causes of which torch knows more than the host."""
_BY_LINE = ("sync-storm", "unexplained")  # causes that need Python's stacks to be found


class AutoTrace:
    """The policy: decides for which incident a trace is taken now. Each job gets one in an hour."""

    def __init__(self) -> None:
        self._not_before: dict[int, int] = {}  # pid of a trainer -> ns

    def due(self, incidents: Iterable[Incident], now_ns: int) -> Incident | None:
        """The incident that lost most of those that are due at ``now_ns``; None if none is. Call `taken` for its trainers then."""
        due = [one for one in incidents if one.end_ns is None and one.start_ns <= now_ns - LASTS_NS and self._is_due(one, now_ns)]
        return max(due, key=lambda one: one.lost_s, default=None)

    def _is_due(self, one: Incident, now_ns: int) -> bool:
        is_on_gpu = one.cause in GPU_SIDE and one.symptom != "input-bound"
        return is_on_gpu and one.trainer_pid is not None and now_ns >= self._not_before.get(one.trainer_pid, 0)

    def taken(self, pids: Iterable[int], now_ns: int) -> None:
        """Count a trace of these trainers, also one that failed."""
        self._not_before = {pid: t_ns for pid, t_ns in self._not_before.items() if t_ns > now_ns}
        self._not_before |= dict.fromkeys(pids, now_ns + GAP_NS)

    def put_off(self, pids: Iterable[int]) -> None:
        """Let these trainers be due again: others' traces were under way."""
        for pid in pids:
            self._not_before.pop(pid, None)


class AutoTracing:
    """Takes the traces that the policy asks for, in a thread of its own, and passes them to ``deliver``."""

    def __init__(self, deliver: Callable[[list[TracedJob]], None], folder: Callable[[], str], policy: AutoTrace | None = None) -> None:
        """``folder`` gives the folder of the files, when the first one is due."""
        self._deliver, self._folder = deliver, folder
        self._policy = AutoTrace() if policy is None else policy
        self._taking: threading.Thread | None = None
        self._kept_bytes = 0

    def step(self, board: Board, engine: Engine) -> bool:
        """Start taking traces if an incident is due; returns whether it did. Call this a few times a second."""
        if (self._taking is not None and self._taking.is_alive()) or self._kept_bytes >= MOST_BYTES:
            return False
        incident = self._policy.due(engine.incidents, board.t_ns)
        if incident is None or incident.trainer_pid is None:
            return False
        standing = engine.standing.get(incident.trainer_pid)
        ranks = () if standing is None else standing.job.ranks.kin
        pids = [incident.trainer_pid, *sorted(pid for pid in ranks if pid != incident.trainer_pid and pid in engine.standing)][:MOST_RANKS]
        taking = threading.Thread(target=self._take, args=(board, engine, pids, incident.cause), daemon=True, name="autotrace")
        self._policy.taken(pids, board.t_ns)
        try:
            with starting():
                taking.start()
        except UserError:
            self._policy.put_off(pids)
            return False  # the next call tries again
        self._taking = taking
        return True

    def _take(self, board: Board, engine: Engine, pids: list[int], cause: str) -> None:
        from gputop.stream.traced import Seen, UnderWay, alone, asked, named
        from gputop.traces.taking import Wanted

        if not (askable := can_be_asked(pids)):
            return
        try:
            with alone(waits=False):
                wanted = Wanted(SECONDS, with_stack=cause in _BY_LINE)
                jobs = asked(askable, wanted, named(self._folder()), lambda: Seen.of(askable, board, engine), by=BY_GPUTOP)
        except UnderWay:
            self._policy.put_off(pids)
            return
        except UserError:
            return  # no room for a file, or no right to write one: this trace was not asked for
        except Exception as error:  # noqa: BLE001 - no trace this time; the screen and the recording go on
            crash.reason(error)
            return
        self._kept_bytes += sum(job.reading.bytes for job in jobs if job.reading is not None)
        self._deliver(jobs)


def can_be_asked(pids: Sequence[int]) -> list[int]:
    """The processes that have what Kineto needs to be asked, and wait for it."""
    from gputop.traces.askable import why_not

    return [pid for pid, (why, _) in why_not(pids).items() if not why]


def own_folder() -> str:
    """The folder of traces that are taken while nothing is recorded; all but the newest `MOST_FILES` - 1 are removed. Raises UserError."""
    from gputop.traces.environment import PREFIX

    path = os.path.join(config.state_folder(), "traces")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        files = [entry for entry in os.scandir(path) if entry.name.startswith(PREFIX) and entry.is_file(follow_symlinks=False)]
        for old in sorted(files, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime)[: -(MOST_FILES - 1)]:
            os.unlink(old.path)
    except OSError as error:
        raise UserError(f"cannot make {path}: {error.strerror}") from None
    return path
