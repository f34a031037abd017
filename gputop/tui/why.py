"""`e`: the verdict with evidence and fixes, lost GPU time by cause, the incidents; `w`: who took CPU from whom, who woke the trainers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from textual.binding import Binding

from gputop.diagnosis import Verdict
from gputop.diagnosis.model import CAUSES, GROWTHS, Evidence, Fix, WhatIf
from gputop.diagnosis.path import factor, tree, who, without
from gputop.diagnosis.whatif import told
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS
from gputop.model.rates import pair_growth
from gputop.model.roles import program_name
from gputop.session.session import Session
from gputop.system.text import cut, figure, fit
from gputop.tui.box import Box
from gputop.tui.draw import Line, room_for, time_of_day
from gputop.tui.draw.edges import VERDICT_COLOURS
from gputop.tui.prove import ProveScreen, why_not

if TYPE_CHECKING:
    from gputop.diagnosis import Incident, Ledger
    from gputop.session.survey import Episode

LAST_EXPERIMENTS = 4  # experiments that are listed
LAST_INCIDENTS = 8  # incidents that are listed, the newest first
_CAUSE_COLUMNS = max(map(len, CAUSES)) + 2
SPAN_NS = 10 * SECOND_NS  # ns; the tables are sums over this time
MOST_ROWS = 18  # rows of each table
ASSUMES = 56  # columns of a prediction, and at least as many of what it assumes
WHO, NUMBERS = 30, 24  # columns of a process at most, and of the numbers after the two


class WhyScreen(Box):
    """`e`: the diagnosis at the moment shown."""

    TITLE = "why"
    BINDINGS = [Binding("e", "dismiss", "close", show=False), Binding("p", "prove", "prove it")]

    def action_prove(self) -> None:
        """Try the cause, or say why not."""
        self.app.push_screen(ProveScreen(self.context))

    @property
    def first_line(self) -> str:
        """With the key that tries the cause, where there is one to try."""
        is_tried = self.session.engine.verdict.cause not in ("none", "unexplained") and not why_not(self.context)
        return "why   (p: prove it, by switching the cause off and on)" if is_tried else self.TITLE

    def lines(self) -> Sequence[Line]:
        """Verdict, path, fixes, what changes would bring, evidence, processes, lost time by cause, the last incidents."""
        verdict = self.session.verdict_at(self.view.at_ns)
        ledger, incidents = self.context.losses_and_incidents(self.view.at_ns)
        width = min(self.text_width, 116)
        return [
            *_verdict(verdict, width),
            *_path(verdict, width),
            *_fixes(verdict.fixes, width),
            *_what_if(self.session.engine.what_if(verdict), width),
            *_measured(verdict, width),
            *_people(verdict),
            *self._growths(width),
            *self._experiments(width),
            *_ledger(ledger),
            *_incidents(self.session, incidents[-LAST_INCIDENTS:], width),
        ]

    def _experiments(self, width: int) -> list[Line]:
        """How the last experiments until the moment shown ended."""
        replay, at_ns = self.context.replay, self.view.at_ns
        until_ns = self.session.now_ns if at_ns is None else at_ns
        marks = self.session.marks if replay is None else replay.player.marks
        ended = [mark for mark in marks if mark.experiment and mark.t_ns <= until_ns]
        out: list[Line] = [[], [("experiments", "head")]] if ended else []
        for mark in ended[-LAST_EXPERIMENTS:]:
            out += _wrapped(f"{time_of_day(self.session.unix_s(mark.t_ns))} {mark.experiment}", width, "", "  ")
        return out

    def _growths(self, width: int) -> Iterator[Line]:
        """Memory that grows at the moment shown."""
        at_ns = self.session.now_ns if self.view.at_ns is None else self.view.at_ns
        for one in self.session.engine.incidents:
            if one.cause in GROWTHS and one.start_ns <= at_ns and (one.end_ns is None or one.end_ns >= at_ns):
                yield from ([], [(one.cause, VERDICT_COLOURS[one.severity]), (f"   severity {one.severity}", "dim")])
                yield from (*_wrapped(one.headline, width, "title"), *_wrapped(one.detail, width, ""))
                yield from (*_evidence(one.evidence), *_fixes(one.fixes, width))


def _verdict(verdict: Verdict, width: int) -> list[Line]:
    cause = "" if verdict.cause == "none" else f" ← {verdict.cause}"
    return [
        [(f"{verdict.symptom.upper()}{cause}", VERDICT_COLOURS.get(verdict.severity, "title")),
         (f"   severity {verdict.severity}, confidence {100 * verdict.confidence:.0f} %", "dim")],
        *_wrapped(verdict.headline, width, "title"),
        *_wrapped(verdict.detail, width, ""),
    ]  # fmt: skip


def _measured(verdict: Verdict, width: int) -> list[Line]:
    told = [*(_wrapped(verdict.step.told(), width, "") if verdict.step is not None else []), *_evidence(verdict.evidence)]
    return [[], *told] if told else []


def _evidence(evidence: Sequence[Evidence]) -> list[Line]:
    out: list[Line] = [[("evidence", "head")]] if evidence else []
    for item in evidence:
        value = "not measured" if item.value is None else f"{figure(item.value)} {item.unit}"
        out.append([(f"  {item.metric:<28}", "dim"), (f"{value:>16}  ", "title"), (item.text, "")])
    return out


def _path(verdict: Verdict, width: int) -> list[Line]:
    """The walk to the cause, and what would come back without it."""
    out: list[Line] = [[], [("the way there", "head")]] if verdict.path else []
    for indent, line in tree(verdict.path):
        out += _wrapped(line, width, "", f"  {indent}")
    culprits = [who(one.pid, one.name) for one in verdict.culprits]
    told = without(verdict.cause, culprits, verdict.regain_gpu_s, verdict.speedup_max)
    return out + _wrapped(told, width, "title", "  ")


def _what_if(found: Sequence[WhatIf], width: int) -> list[Line]:
    """What changes would bring, each with its band, and what it assumes where there is room."""
    out: list[Line] = [[], [("what if", "head")]] if found else []
    for one in found:
        line, room = f"  {told(one, closely=True)}", width - ASSUMES
        out.append([(fit(line, ASSUMES), ""), (cut(one.assumes, room), "dim")] if room >= ASSUMES else [(cut(line, width), "")])
    return out


def _people(verdict: Verdict) -> list[Line]:
    out: list[Line] = []
    if verdict.victims:
        out += [[], [("who suffers", "head")]]
        out += [[(f"  {victim.pid:>8}  {victim.name} ({victim.role})", "")] for victim in verdict.victims]
    if verdict.culprits:
        out += [[], [("who takes it", "head")]]
    for culprit in verdict.culprits:
        cpu = "" if culprit.cpu_s is None else f"  {culprit.cpu_s:.1f} CPU s"
        out.append([(f"  {culprit.pid:>8}  {culprit.name}{cpu}", "")])
    return out


def _fixes(fixes: Sequence[Fix], width: int) -> list[Line]:
    out: list[Line] = [[], [("what to do", "head")]] if fixes else []
    for fix in fixes:
        out += _wrapped(f"• {fix.text}", width, "")
        if fix.command:
            out.append([(f"    {fix.command}", "accent")])
    return out


def _ledger(ledger: Ledger) -> list[Line]:
    if not ledger.gpu_total_s:
        return []
    share = 100 * ledger.gpu_lost_s / ledger.gpu_total_s
    out: list[Line] = [[], [("GPU time lost since the start", "head")]]
    out.append([(f"  {ledger.gpu_lost_s:.1f} of {ledger.gpu_total_s:.1f} GPU seconds without work ({share:.0f} %)", "title")])
    bounds = {one.cause: factor(one.speedup_max) for one in ledger.regains()}
    for cause, lost_s in sorted(ledger.by_cause.items(), key=lambda item: -item[1]):
        if lost_s > 0:
            bound = f"   without it {bounds[cause]}" if bounds.get(cause) else ""
            out.append([(f"  {cause:<28}{lost_s:>9.1f} s{100 * lost_s / max(ledger.gpu_lost_s, 1e-9):>6.0f} %{bound}", "")])
    if len(bounds) > 1 and (told := factor(ledger.speedup_of_all())):
        out.append([(f"  without any of these {told} (their seconds add up, the factors do not)", "dim")])
    return out


def _incidents(session: Session, incidents: Sequence[Incident | Episode], width: int) -> list[Line]:
    out: list[Line] = [[], [("incidents (n, N jump to them)", "head")]] if incidents else []
    for one in reversed(incidents):
        start = time_of_day(session.unix_s(one.start_ns))
        end = "now" if one.end_ns is None else time_of_day(session.unix_s(one.end_ns))
        colour = VERDICT_COLOURS.get(one.severity, "")
        cause, headline = f"{one.cause:<{_CAUSE_COLUMNS}}", cut(one.headline, width - 36)
        out.append([(f"  {start}–{end:<8} ", "dim"), (cause, colour), (headline, "")])
    return out


def _wrapped(text: str, width: int, style: str, indent: str = "") -> list[Line]:
    rest = f"{indent}  " if indent else ""
    lines = textwrap.wrap(text, room_for(text, width), initial_indent=indent, subsequent_indent=rest) if text else []
    return [[(line, style)] for line in lines]


class Pair(Struct):
    """What happened between two processes in `SPAN_NS`."""

    one: int
    other: int
    ns: int
    times: int


class ContentionScreen(Box):
    """`w`: the ten seconds before the moment shown, from the pairs that the scheduler probe counts."""

    TITLE = "who took CPU from whom, who woke whom   (last 10 s)"
    BINDINGS = [Binding("w", "dismiss", "close", show=False)]

    def lines(self) -> Sequence[Line]:
        """Two tables, or why there are none."""
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


_Row = tuple[Pair, str, str]  # the processes, share and seconds, style


def preemption_pairs(older: Board, newer: Board) -> list[Pair]:
    """(victim, culprit) by process, the longest waits first."""
    grown = _grown(older.preempts, newer.preempts, "ns")
    return _summed((pid_of(now.victim_tid, newer), now.culprit_pid, ns, times) for now, ns, times in grown)


def wakeup_pairs(older: Board, newer: Board, sleepers: frozenset[int]) -> list[Pair]:
    """(main thread of a sleeper, waker) by process, of ``sleepers`` alone, the longest waits first."""
    grown = _grown(older.wakeups, newer.wakeups, "wait_ns")
    return _summed((now.wakee_tid, now.waker_pid, ns, times) for now, ns, times in grown if now.wakee_tid in sleepers)


def _grown(older: Mapping[Any, Any], newer: Mapping[Any, Any], name: str) -> Iterator[tuple[Any, int, int]]:
    """(entry, growth of its field ``name`` in ns, growth of its times) of each entry between two boards."""
    for key, now in newer.items():
        was = older.get(key)
        yield now, pair_growth(getattr(was, name, 0), getattr(now, name)), pair_growth(getattr(was, "times", 0), now.times)


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
