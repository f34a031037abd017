"""The scene that an intervention looks at before it plans: the processes now, the culprits that may be touched, and why others may not."""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec.structs import replace

from gputop.prove.change import Case, Plan, Refusal, TargetProcess, named
from gputop.prove.groups import Groups, may_write
from gputop.prove.permission import is_own, stage, touchable, why_never, why_off_stage
from gputop.prove.processes import Proc, ancestors, read_processes, uids_of
from gputop.prove.reach import reached
from gputop.system.privilege import CAP_SYS_NICE, capabilities
from gputop.system.text import clean

NICE_LIMIT = b"Max nice priority"  # line of /proc/PID/limits


class Scene:
    """One look at the machine, for one `Case`."""

    def __init__(self, case: Case, allow_stop: bool, allow_others: bool) -> None:
        self.case, self.allow_stop, self.allow_others = case, allow_stop, allow_others
        self.table = read_processes()
        self.groups = Groups()
        self.stage = stage(self.table)
        self.refused: list[str] = []  # why culprits are left out, one line each
        self.others: list[TargetProcess] = []  # other users' processes in `culprits`
        self._kin = {one.pid for one in (case.trainer, *case.family, *case.victims)}
        self._above = {above for pid in self._kin for above in ancestors(self.table, pid)}
        self.culprits = self._roots(case.culprits)

    def living(self, target: TargetProcess) -> Proc | None:
        """The process, unless it has ended."""
        proc = self.table.get(target.pid)
        return proc if proc is not None and proc.start_ticks == target.start_ticks and not proc.ended else None

    def job(self) -> list[TargetProcess] | Refusal:
        """The job's processes without the descendants of others; `Refusal` if one may not be touched."""
        family = {one.pid: one for one in (self.case.trainer, *self.case.family, *self.case.victims) if self.living(one)}
        tops = [one for pid, one in family.items() if not family.keys() & set(ancestors(self.table, pid))]
        for one in tops:
            proc = self.table[one.pid]
            if why := self.why_untouchable(proc):
                return Refusal(f"{one} {why}")
            self._note_other(proc)
        return tops or Refusal("the job has ended")

    def rest_of_session(self, target: TargetProcess) -> list[TargetProcess] | Refusal:
        """Processes other than the culprits in the target's session, which has one weight for all; `Refusal` if one may not be touched."""
        session, inside = self.table[target.pid].session, self.pids_of(self.culprits)
        rest = [proc for proc in self.table.values() if proc.session == session and proc.pid not in inside and not proc.ended]
        for proc in rest:
            if why := "is of the job itself" if proc.pid in self._kin else self.why_untouchable(proc):
                return Refusal(f"{target} shares the CPU time of its session with {self.target(proc)}, which {why}: try --stop")
            self._note_other(proc)
        return [self.target(proc) for proc in rest]

    def pids_of(self, targets: Iterable[TargetProcess]) -> set[int]:
        """Pids of the targets and their descendants, as far as they may be touched."""
        roots = [proc for one in targets if (proc := self.living(one)) is not None]
        return {proc.pid for root in roots for proc in touchable(self.table, root)}

    def target(self, proc: Proc, name: str = "") -> TargetProcess:
        return TargetProcess(proc.pid, proc.start_ticks, clean(name or proc.comm, 64))

    def refuse_file(self, path: str) -> Refusal | None:
        """Why a control group's file may not be written; None if it may."""
        return None if may_write(path) else Refusal(f"{path} may be written by root only: run gputop prove as root (sudo)")

    def told(self, what: str) -> Refusal:
        """``what``, and why culprits are left out."""
        return Refusal("; ".join([what, *self.refused[:3]]))

    def planned(self, plan: Plan) -> Plan | Refusal:
        """The plan with every process that it reaches; `Refusal` if one may not be touched. Raises ReachUnknown if not all can be named."""
        found = reached(plan.changes, self.table, self._kin)
        for one in found:
            why = why_off_stage(one.target.pid, self.stage)
            if one.is_other and not (os.geteuid() == 0 and self.allow_others):
                why = why or f"belongs to another user ({one.user}): run gputop prove as root (sudo)"
            if why:
                return Refusal(f"{plan.says} would change {one.target}, too, which {why}")
        others = dict.fromkeys([*self.others, *(one.target for one in found if one.is_other)])
        by_id = {(one.pid, one.start_ticks): one for one in reversed(others)}
        return replace(plan, others=tuple(reversed(by_id.values())), reached=found)

    def _roots(self, targets: Iterable[TargetProcess]) -> list[TargetProcess]:
        """The culprits that may be touched. A process of a job (a compiler of a build) stands for the job's first process."""
        found: dict[int, TargetProcess] = {}
        named_of: dict[int, list[TargetProcess]] = {}
        for target in targets:
            proc = self.living(target)
            if proc is None:
                self.refused.append(f"{target} has ended")
                continue
            why = self._why_not(proc)
            if self.case.cause == "straggler-rank" and target.name == self.case.trainer.name:
                why = "is a rank of the same training"
            if why:
                self.refused.append(f"{target} {why}")
                continue
            top = self._top(proc)
            self._note_other(top)
            found[top.pid] = target if top is proc else found.get(top.pid, self.target(top))
            named_of.setdefault(top.pid, []).extend([target] if top is not proc else [])
        return [replace(one, stands_for=named(named_of[pid])) for pid, one in found.items()]

    def _top(self, proc: Proc) -> Proc:
        """The first process of the job that a process belongs to: its highest ancestor in the same process group that may be touched."""
        while (parent := self.table.get(proc.ppid)) is not None and parent.group == proc.group and self._is_alike(parent, proc):
            proc = parent
        return proc

    def _is_alike(self, parent: Proc, proc: Proc) -> bool:
        """True if a process may be touched and has its parent's rights: only then it is touched along with the parent."""
        try:
            return not self._why_not(parent) and uids_of(parent.pid) == uids_of(proc.pid)
        except ProcessLookupError:
            return False

    def _why_not(self, proc: Proc) -> str:
        if proc.pid in self._kin:
            return "is of the job itself"
        if proc.pid in self._above:
            return "is what the job was started by"
        return self.why_untouchable(proc)

    def why_untouchable(self, proc: Proc) -> str:
        """Why a process may not be touched, as a predicate; empty if it may."""
        return why_never(proc, self.table) or why_off_stage(proc.pid, self.stage) or self._why_foreign(proc)

    def _why_foreign(self, proc: Proc) -> str:
        try:
            if not is_own(proc) and not (os.geteuid() == 0 and self.allow_others):
                return "belongs to another user: run gputop prove as root (sudo)"
        except ProcessLookupError:
            return "has ended"
        return ""

    def _note_other(self, proc: Proc) -> None:
        try:
            if not is_own(proc):
                self.others.append(self.target(proc))
        except ProcessLookupError:
            pass


def may_raise(pid: int, nice: int) -> bool:
    """True if this process has the right to set the niceness of ``pid`` back to ``nice``: CAP_SYS_NICE, or the process's own
    RLIMIT_NICE."""
    if capabilities() >> CAP_SYS_NICE & 1:
        return True
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(NICE_LIMIT):
                    return int(line[len(NICE_LIMIT) :].split()[0]) >= 20 - nice
    except (OSError, ValueError):
        pass
    return False
