"""`e`: the verdict with evidence and fixes, lost GPU time by cause, the incidents; `w`: takers and losers of CPU time, and wakers of the
trainers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from textual.binding import Binding

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS
from gputop.model.rates import pair_growth
from gputop.model.roles import program_name
from gputop.system.text import fit
from gputop.tui import clipboard
from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.canvas import Note, Steady
from gputop.tui.draw import Line, why
from gputop.tui.feed import Context
from gputop.tui.prove_box import ProveScreen, why_not

SPAN_NS = 10 * SECOND_NS  # ns; the tables are sums over this time
MOST_ROWS = 18  # rows of each table
WHO, NUMBERS = 30, 24  # columns of a process at most, and of the numbers after the two


class WhyScreen(Box):
    """`e`: the diagnosis at the moment shown."""

    TITLE = "why"
    NAME = ("e", "why")
    BINDINGS = [
        Binding("e", "dismiss", "close", show=False),
        Binding("p", "prove", "prove it"),
        Binding("c", "copy(1)", "copy the first command"),
        *(Binding(str(n), f"copy({n})", f"copy command {n}", show=False) for n in range(1, 10)),
    ]

    FOOTER = (("p", "prove", "prove"), ("c", "copy the fix", "copy(1)"), ("1-9", "copy that one", "copy(1)"), CLOSE_KEY)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._note = Note()  # what was copied
        self._commands = Steady[tuple[str, ...]](())  # on the page, in the order of their keys
        self._opens = True  # whether what takes long is left out, so that the box stands at once
        self._is_partial = False  # whether anything was

    def on_mount(self) -> None:
        """Fill in what was left out, once the box is drawn."""
        self.call_after_refresh(self._fill)

    def _fill(self) -> None:
        self._opens = False
        if self._is_partial:
            self.refresh_text()

    def action_prove(self) -> None:
        """Try the cause, or show why it cannot be tried."""
        self.open_over(ProveScreen(self.context))

    def action_copy(self, number: int) -> None:
        """Copy a command of the fixes to the clipboard."""
        self._note.show(clipboard.copy_nth(self.app, self._commands.taken, number))
        self.refresh_text()

    @property
    def first_line(self) -> str:
        """The command that was just copied, else the keys that do something here."""
        if self._note.text:
            return self._note.text
        with self.session.lock:
            count = len(why.commands(self.session.verdict_at(self.view.at_ns)))
            is_tried = self.session.engine.verdict.cause not in ("none", "unexplained") and not why_not(self.context)
        keys = ["c: copy the command" if count == 1 else f"1-{min(9, count)}: copy a command"] if count else []
        keys += ["p: prove it, by switching the cause off and on"] if is_tried else []
        return f"{self.TITLE}   ({', '.join(keys)})" if keys else self.TITLE

    def lines(self) -> Sequence[Line]:
        """Verdict, path, culprits, fixes; then evidence, what changes would bring, lost time by cause, the last incidents."""
        found = self.context.findings(at_once=self._opens)
        self._is_partial = found.what_if is None
        self._commands.show(tuple(why.commands(found.verdict)))
        return why.page(found, self.text_width, self.text_height)


class ProcessPair(Struct):
    """Time and number of events between two processes in `SPAN_NS`."""

    one: int
    other: int
    ns: int
    times: int


class ContentionScreen(Box):
    """`w`: the ten seconds before the moment shown, from the pairs that the scheduler probe counts."""

    TITLE = "who took CPU from whom, who woke whom   (last 10 s)"
    NAME = ("w", "who took CPU")
    BINDINGS = [Binding("w", "dismiss", "close", show=False)]

    def lines(self) -> Sequence[Line]:
        """Two tables, or the reason why they are missing."""
        session = self.session
        newer = session.board_at(self.view.at_ns)
        older = session.board_at(max(session.oldest_ns, newer.t_ns - SPAN_NS))
        if not newer.probed_ns:
            state = newer.sources.get("ebpf")
            reason = state.reason if state and state.reason else "no reading yet"
            remedy = f" ({state.remedy})" if state and state.remedy else ""
            return [[(f"needs the eBPF probes: {reason}{remedy}", "warn")]]
        roles = session.roles_at(newer)
        span_s = max(1e-9, (newer.t_ns - older.t_ns) / SECOND_NS)
        taken, woken = list[_Row](), list[_Row]()
        for pair in preemption_pairs(older, newer)[:MOST_ROWS]:
            seconds = pair.ns / SECOND_NS
            is_stranger = pair.one in roles and pair.other not in roles
            taken.append((pair, f"{seconds / span_s:>7.2f}{seconds:>9.2f}", "starving" if is_stranger else ""))
        trainers = frozenset(pid for pid, role in roles.items() if role.kind == "trainer")
        for pair in wakeup_pairs(older, newer, trainers)[:MOST_ROWS]:
            seconds = min(span_s, pair.ns / SECOND_NS)  # a wait is booked when it ends, whenever it began
            woken.append((pair, f"{100 * seconds / span_s:>7.0f}{seconds:>9.2f}", ""))

        def who(pid: int) -> str:
            role, info = roles.get(pid), newer.infos.get(pid)
            name = role.label if role and role.label else program_name(info) if info else "has ended"
            return fit(f"{pid} {name}" if pid else "an interrupt, the kernel", width - 1) + " "

        def table(one: str, other: str, share: str, rows: list[_Row], none: str) -> list[Line]:
            head = f"{fit(one, width - 1)} {fit(other, width - 1)} {share:>7}{'seconds':>9}{'times':>8}"
            lines: list[Line] = [[(f"{who(pair.one)}{who(pair.other)}{text}{pair.times:>8}", style)] for pair, text, style in rows]
            return [[(head, "head")], *(lines or [[(f"  {none}", "dim")]])]

        width = min(WHO, (self.text_width - NUMBERS) // 2)
        estimated = f"estimates: context switches are so many that they are counted in {100 * newer.switch_share:.0f} % of the time"
        head: list[Line] = [[(estimated, "warn")], []] if newer.switch_share < 1.0 else []
        return [
            *head,
            *table("was runnable", "while this ran on its CPU", "cores", taken, "no process waited for a CPU behind another"), [],
            *table("slept", "until woken by", "% time", woken, "no trainer was woken"),
        ]  # fmt: skip


_Row = tuple[ProcessPair, str, str]  # the processes, share and seconds, style


def preemption_pairs(older: Board, newer: Board) -> list[ProcessPair]:
    """(victim, culprit) by process, the longest waits first."""
    grown = _grown(older.preempts, newer.preempts, "ns")
    return _summed((pid_of(now.victim_tid, newer), now.culprit_pid, ns, times) for now, ns, times in grown)


def wakeup_pairs(older: Board, newer: Board, sleepers: frozenset[int]) -> list[ProcessPair]:
    """(main thread of a sleeper, waker) by process, of ``sleepers`` alone, the longest waits first."""
    grown = _grown(older.wakeups, newer.wakeups, "wait_ns")
    return _summed((now.wakee_tid, now.waker_pid, ns, times) for now, ns, times in grown if now.wakee_tid in sleepers)


def _grown(older: Mapping[Any, Any], newer: Mapping[Any, Any], name: str) -> Iterator[tuple[Any, int, int]]:
    """(entry, growth of its field ``name`` in ns, growth of its times) of each entry between two boards."""
    for key, now in newer.items():
        was = older.get(key)
        yield now, pair_growth(getattr(was, name, 0), getattr(now, name)), pair_growth(getattr(was, "times", 0), now.times)


def _summed(found: Iterable[tuple[int, int, int, int]]) -> list[ProcessPair]:
    pairs: dict[tuple[int, int], ProcessPair] = {}
    for one, other, ns, times in found:
        if ns > 0:
            pair = pairs.setdefault((one, other), ProcessPair(one, other, 0, 0))
            pair.ns += ns
            pair.times += times
    return sorted(pairs.values(), key=lambda pair: -pair.ns)


def pid_of(tid: int, board: Board) -> int:
    """The process of a thread; the thread's own id where the process is not known."""
    thread = board.threads.get(tid)
    return thread.pid if thread is not None else tid
