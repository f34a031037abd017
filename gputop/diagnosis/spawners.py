"""Who starts short-lived programs again and again: a build, a cron job, a shell loop.

Such programs come and go between two looks. What they took is seen when their parent has waited for them, as its cutime and cstime
(/proc/PID/stat), and on upwards to the first that stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gputop.diagnosis.facts import Taker
from gputop.diagnosis.strangers import Stranger, born_ns, shares
from gputop.model.board import Board

SHORT_NS = 5_000_000_000  # who lives longer is told by itself
LEAST_CORES = 0.1
LEVELS = 6  # between make and the compiler itself stand a make of a folder, a shell and the compiler's driver
_INIT = 1  # it waits for everybody whose parent is gone, and started none of them


def gather(takers: list[Taker], strangers: Mapping[int, Stranger], board: Board, oldest_ns: int) -> list[Taker]:
    """``takers``, in which who starts short-lived programs stands for these."""
    reaped = _reaped(strangers, board, oldest_ns)
    if not reaped:
        return takers
    tops = {pid: top for pid in strangers if (top := _top(pid, reaped, strangers)) is not None}
    alone = {taker.pid: taker for taker in takers}
    members = {pid: top for pid, top in tops.items() if pid in reaped or _is_short(strangers[pid], board)}
    gathered: dict[int, Taker] = {}
    ns_on: dict[int, Counter[int]] = {}
    for pid, top in members.items():
        if top not in gathered:
            gathered[top] = Taker(top, strangers[top].name, reaped[top], info=strangers[top].info, spawns=True)
        ns_on.setdefault(top, Counter()).update(_ns_on(strangers[pid], pid == top))
        if pid != top:
            gathered[top].started[pid] = strangers[pid].name, strangers[pid].used[-1].own_ns
        if (own := alone.pop(pid, None)) is not None:
            # What those take that live now their parent will be told of: as much as it was of those before them.
            gathered[top].cores += own.cores if pid == top else 0.0
            gathered[top].preempted_s += own.preempted_s
    for top, taker in gathered.items():
        taker.where = shares(ns_on[top])
    return [*alone.values(), *gathered.values()]


def _ns_on(stranger: Stranger, stays: bool) -> Counter[int]:
    """Where it ran, of a short-lived one all of its life."""
    first = stranger.used[0]
    return stranger.ns_on + Counter({first.cpu: first.own_ns} if first.cpu is not None and not stays else {})


def _reaped(strangers: Mapping[int, Stranger], board: Board, oldest_ns: int) -> dict[int, float]:
    """Pid -> CPUs that its short-lived children took, of those of whom that is worth telling."""
    apart, found = _apart(strangers, board, oldest_ns), dict[int, float]()
    for pid, stranger in strangers.items():
        old, new = stranger.used[0], stranger.used[-1]
        if new.children_ns > old.children_ns and new.t_ns > oldest_ns and pid != _INIT and pid in board.procs:
            cores = (new.children_ns - old.children_ns - apart.get(pid, 0)) / (new.t_ns - old.t_ns)
            if LEAST_CORES <= cores <= 2 * board.header.cpus:
                found[pid] = min(cores, board.header.cpus)  # some of it was taken before the window
    return found


def _apart(strangers: Mapping[int, Stranger], board: Board, oldest_ns: int) -> dict[int, int]:
    """Pid -> ns that ended children took before the window, or were told for by themselves."""
    ended: dict[int, list[int]] = {}
    for pid, stranger in strangers.items():
        if pid not in board.procs and stranger.info is not None:
            ended.setdefault(stranger.info.ppid, []).append(pid)

    told = _told_ns(ended, strangers, board, oldest_ns)
    return {parent: sum(told.get(pid, 0) for pid in pids) for parent, pids in ended.items() if parent in board.procs}


def _told_ns(ended: Mapping[int, list[int]], strangers: Mapping[int, Stranger], board: Board, oldest_ns: int) -> dict[int, int]:
    """Of those that have ended, each with those below it that have: of the lowest first, however deep they were nested. Nobody stands
    below itself, whatever a recording says."""
    told: dict[int, int] = {}
    order = [pid for parent, pids in ended.items() if parent in board.procs for pid in pids]
    for pid in order:  # those found stand behind, so that all that is below one comes later than it
        order += ended.get(pid, ())
    for pid in reversed(order):
        stranger = strangers[pid]
        old, new = stranger.used[0], stranger.used[-1]
        if _is_short(stranger, board):
            told[pid] = old.own_ns + old.children_ns if old.t_ns <= oldest_ns else 0
        else:
            # It ran on after its last sample, and may have waited for its own: as much again as in all of the window is left out.
            below_ns = sum(told[child] for child in ended.get(pid, ()))
            told[pid] = new.own_ns + new.own_ns - old.own_ns + max(new.children_ns, below_ns)
    return told


def _is_short(stranger: Stranger, board: Board) -> bool:
    return stranger.latest.t_ns - born_ns(stranger.latest, board) < SHORT_NS


def _top(pid: int, reaped: Mapping[int, float], strangers: Mapping[int, Stranger]) -> int | None:
    """The highest above a process, itself included, that has waited for short-lived ones."""
    top = pid if pid in reaped else None
    for _ in range(LEVELS):
        stranger = strangers.get(pid)
        if stranger is None or stranger.info is None:
            break
        pid = stranger.info.ppid
        top = pid if pid in reaped else top
    return top


def tree_ns(board: Board, pid: int) -> int:
    """CPU time of a process, of the children it has waited for, and of all that live below it."""
    below: dict[int, list[int]] = {}
    for info in board.infos.values():
        below.setdefault(info.ppid, []).append(info.pid)
    total, due = 0, [pid]
    while due:
        one = due.pop()
        due += below.pop(one, [])
        if (sample := board.procs.get(one)) is not None:
            total += sample.utime_ns + sample.stime_ns + (sample.children_ns or 0)
    return total
