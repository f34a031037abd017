"""The fix that live surfaces offer: it holds still long enough to be read and taken, whatever each new verdict names first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from gputop.findings.verdict import LOOKING, SEVERITIES, Fix, Incident, Verdict, best_fix
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS
from gputop.system.text import clean

HOLD_NS = 10 * SECOND_NS  # ns that an offered fix stays, unless it is plainly wrong: time to read it and to reach for the key (a choice)
_NUMBER = re.compile(r"\d+")
_OF_SETTINGS = re.compile(
    r"(sudo )?(sh -c ')?(for \w+ in [\d ]+; do )?(chrt|renice|ionice|taskset|kill -CONT|systemctl set-property|echo) "
)  # the beginning of commands that `gputop.prove.advised` reads
_PIDS = re.compile(r"(?:/proc/|--pid 0 |-p |-apc [\d,-]+ |\bin |kill (?:-CONT )?)(\d+(?: \d+)*)")  # where pids stand in a command
_OF_A_GROUP = re.compile(r"/sys/fs/cgroup/|\bset-property\b")  # in a command that changes a control group


class Offer(Struct, frozen=True):
    """A fix, and what it was offered for."""

    fix: Fix
    verdict: Verdict
    since_ns: int
    started: tuple[tuple[int, int], ...] = ()  # (pid, start_ticks) of the processes that its command names

    @property
    def command(self) -> str:
        """The command as it is shown, copied and applied; empty if only a person can do it."""
        return clean(self.fix.command)

    @property
    def is_for_a_key(self) -> bool:
        """Whether a key can do it: its command changes settings. Code, an option of the next start, a restart are for people."""
        return _is_for_a_key(self.fix)


def _is_for_a_key(fix: Fix) -> bool:
    return not fix.look and _OF_SETTINGS.match(fix.command) is not None


class Offering:
    """Chooses the fix that is offered, verdict by verdict."""

    def __init__(self, is_staged: bool = False) -> None:
        """``is_staged``: the stream is a demo's, which touches its own processes alone."""
        self.now: Offer | None = None
        self._is_staged = is_staged

    def take(self, t_ns: int, verdict: Verdict, board: Board, incidents: list[Incident]) -> Offer | None:
        """The offer after a new verdict: the one before it while it holds, else the best of the verdict."""
        own = _of_the_stage(verdict.fixes, verdict, board) if self._is_staged else verdict.fixes
        held, found = self.now, best_fix(own)
        is_foreign = held is not None and self._is_staged and own and not _of_the_stage([held.fix], held.verdict, board)
        if held is not None and not is_foreign and not _is_wrong(held, verdict, board, incidents):
            is_same = _names_the_same(held.verdict, verdict)
            is_listed = is_same and any(one.command == held.fix.command for one in verdict.fixes)
            if is_same and not is_listed and not held.is_for_a_key and found is not None and _is_for_a_key(found):
                return self._offer(found, t_ns, verdict, board)  # the advice to a person is withdrawn: a setting is the reason
            is_better = found is not None and (found.look, not found.command) < (held.fix.look, not held.fix.command)
            if t_ns - held.since_ns < HOLD_NS or (is_listed and not is_better) or (self._is_staged and not own):
                return held
        return self._offer(found, t_ns, verdict, board)

    def _offer(self, found: Fix | None, t_ns: int, verdict: Verdict, board: Board) -> Offer | None:
        self.now = None if found is None else Offer(found, verdict, t_ns, _named(found, verdict, board))
        return self.now


def _of_the_stage(fixes: Sequence[Fix], verdict: Verdict, board: Board) -> list[Fix]:
    """The fixes with a command that names only the demo's own control group, and processes that the trainer's parent has started, too."""
    from gputop.sources.simulated import GROUP  # only a demo's screen needs it

    trainer = board.infos.get(verdict.trainer_pid or 0)
    stage = 0 if trainer is None else trainer.ppid
    return [
        fix for fix in fixes
        if fix.command and all(_is_below(stage, int(pid), board) for pids in _PIDS.findall(fix.command) for pid in pids.split())
        and (not _OF_A_GROUP.search(fix.command) or f"{GROUP}{stage}" in fix.command)
    ]  # fmt: skip


def _is_below(above: int, pid: int, board: Board) -> bool:
    """True if a process descends from ``above``."""
    seen = set[int]()
    while pid != above and pid in board.infos and pid not in seen:
        seen.add(pid)
        pid = board.infos[pid].ppid
    return pid == above


def _is_wrong(held: Offer, verdict: Verdict, board: Board, incidents: list[Incident]) -> bool:
    """True if a process that the command names has ended, if its cause has ended, or if the trouble is of another severity."""
    if any(pid not in board.procs or pid not in board.infos or board.infos[pid].start_ticks != ticks for pid, ticks in held.started):
        return True
    if verdict.symptom == LOOKING or _names_the_same(held.verdict, verdict):
        return False
    return _is_other_trouble(held.verdict.severity, verdict.severity) or not any(
        one.end_ns is None and one.cause == held.verdict.cause and one.trainer_pid == held.verdict.trainer_pid for one in incidents
    )


def _names_the_same(one: Verdict, other: Verdict) -> bool:
    return (one.cause, one.trainer_pid, one.gpu) == (other.cause, other.trainer_pid, other.gpu)


def _is_other_trouble(before: str, now: str) -> bool:
    """True if trouble began or ended, or became worse: then the new verdict's fix is what is wanted."""
    was, rank = (SEVERITIES.index(one) if one in SEVERITIES else 0 for one in (before, now))
    return rank > was or rank == 0 < was


def _named(fix: Fix, verdict: Verdict, board: Board) -> tuple[tuple[int, int], ...]:
    """The processes of the verdict that a command names."""
    parties = {one.pid for one in verdict.culprits} | {one.pid for one in verdict.victims} | {one.pid for one in verdict.path}
    named = dict.fromkeys(int(number) for number in _NUMBER.findall(fix.command))
    pids = [pid for pid in named if pid in parties or pid == verdict.trainer_pid]
    return tuple((pid, board.infos[pid].start_ticks) for pid in pids if pid in board.infos and pid in board.procs)
