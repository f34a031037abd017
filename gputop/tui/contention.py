"""`w`: who took CPU from whom, and who woke the trainers; from the pairs that the scheduler probe counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from textual.binding import Binding

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Preempt, Wakeup
from gputop.model.rates import pair_growth
from gputop.model.roles import Role, program_name
from gputop.system.text import fit
from gputop.tui.box import Box
from gputop.tui.draw import Line

SPAN_NS = 10 * SECOND_NS  # ns; the tables are sums over this time
MOST_ROWS = 18  # rows of each table
WHO, NUMBERS = 30, 24  # columns of a name, where there is room for two, and of the numbers behind them
_NEVER_PREEMPTED, _NEVER_WOKEN = Preempt(0, 0, 0, 0, 0), Wakeup(0, 0, 0, 0, 0)


class Pair(Struct):
    """What happened between two processes in `SPAN_NS`."""

    one: int
    other: int
    ns: int
    times: int


class ContentionScreen(Box):
    """The ten seconds before the moment shown."""

    TITLE = "who took CPU from whom, who woke whom   (last 10 s)"
    BINDINGS = [Binding("w", "dismiss", "close", show=False)]

    def lines(self) -> Sequence[Line]:
        """Two tables, or why there are none."""
        session, at = self.session, self.view.at_ns
        newer = session.board_at(at)
        older = session.board_at(max(session.oldest_ns, newer.t_ns - SPAN_NS))
        state = newer.sources.get("ebpf")
        if not newer.probed_ns:
            reason = state.reason if state and state.reason else "no reading yet"
            remedy = f" ({state.remedy})" if state and state.remedy else ""
            return [[(f"needs the eBPF probes: {reason}{remedy}", "warn")]]
        roles = session.roles_at(newer)
        span_s = max(1e-9, (newer.t_ns - older.t_ns) / SECOND_NS)
        names = _Names(newer, roles, min(WHO, (self.text_width - NUMBERS) // 2))
        return [*_taken(older, newer, names, span_s), [], *_ended(older, newer, names, span_s)]


class _Names(Struct, frozen=True):
    """Names of processes, in ``width`` columns each."""

    board: Board
    roles: dict[int, Role]
    width: int

    def pair(self, pair: Pair) -> str:
        return self._who(pair.one) + self._who(pair.other)

    def head(self, one: str, other: str, share: str) -> Line:
        return [(f"{fit(one, self.width - 1)} {fit(other, self.width - 1)} {share:>7}{'seconds':>9}{'times':>8}", "head")]

    def _who(self, pid: int) -> str:
        role, info = self.roles.get(pid), self.board.infos.get(pid)
        name = role.label if role and role.label else program_name(info) if info else "has ended"
        return fit(f"{pid} {name}" if pid else "an interrupt, the kernel", self.width - 1) + " "


def _taken(older: Board, newer: Board, names: _Names, span_s: float) -> list[Line]:
    pairs = preemption_pairs(older, newer)
    out: list[Line] = [names.head("was runnable", "while this ran on its CPU", "cores")]
    for pair in pairs[:MOST_ROWS]:
        style = "starving" if pair.one in names.roles and pair.other not in names.roles else ""
        seconds = pair.ns / SECOND_NS
        out.append([(names.pair(pair), style), (f"{seconds / span_s:>7.2f}{seconds:>9.2f}{pair.times:>8}", style)])
    return out if pairs else [*out, [("  no process waited for a CPU behind another", "dim")]]


def _ended(older: Board, newer: Board, names: _Names, span_s: float) -> list[Line]:
    trainers = frozenset(pid for pid, role in names.roles.items() if role.kind == "trainer")
    pairs = wakeup_pairs(older, newer, trainers)
    out: list[Line] = [names.head("slept", "until woken by", "% time")]
    for pair in pairs[:MOST_ROWS]:
        seconds = min(span_s, pair.ns / SECOND_NS)  # a wait is booked when it ends, whenever it began
        out.append([(names.pair(pair), ""), (f"{100 * seconds / span_s:>7.0f}{seconds:>9.2f}{pair.times:>8}", "")])
    return out if pairs else [*out, [("  no trainer was woken", "dim")]]


def preemption_pairs(older: Board, newer: Board) -> list[Pair]:
    """(victim, culprit) by process, the longest waits first."""
    found = (
        (pid_of(now.victim_tid, newer), now.culprit_pid, pair_growth(was.ns, now.ns), pair_growth(was.times, now.times))
        for key, now in newer.preempts.items()
        for was in [older.preempts.get(key, _NEVER_PREEMPTED)]
    )
    return _summed(found)


def wakeup_pairs(older: Board, newer: Board, sleepers: frozenset[int]) -> list[Pair]:
    """(main thread of a sleeper, waker) by process, of ``sleepers`` alone, the longest waits first."""
    found = (
        (now.wakee_tid, now.waker_pid, pair_growth(was.wait_ns, now.wait_ns), pair_growth(was.times, now.times))
        for key, now in newer.wakeups.items()
        if now.wakee_tid in sleepers
        for was in [older.wakeups.get(key, _NEVER_WOKEN)]
    )
    return _summed(found)


def _summed(found: Iterable[tuple[int, int, int, int]]) -> list[Pair]:
    pairs: dict[tuple[int, int], Pair] = {}
    for one, other, ns, times in found:
        if ns > 0:
            pair = pairs.setdefault((one, other), Pair(one, other, 0, 0))
            pair.ns += ns
            pair.times += times
    return sorted(pairs.values(), key=lambda pair: -pair.ns)


def pid_of(tid: int, board: Board) -> int:
    """The process of a thread; the thread's own id where the process is not known."""
    thread = board.threads.get(tid)
    return thread.pid if thread is not None else tid
