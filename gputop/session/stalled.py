"""Whose stacks are worth taking now, and what each waits for in the diagnosis's words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gputop.diagnosis import ProcState, Verdict
from gputop.model.board import Board
from gputop.model.roles import Role, hot

_FREE = frozenset({"running", "computing", "ahead"})
_NAMED = 4
_MEANING = {
    "runnable": "wanted a CPU and had none", "disk": "waited for block I/O", "memory": "reclaimed memory or faulted pages in",
    "throttled": "was throttled by its cgroup's CPU quota", "stopped": "was stopped", "transfer": "copied to or from the GPU",
    "waiting-gpu": "waited for the GPU",
}  # fmt: skip


def stalled_pids(roles: Mapping[int, Role], states: Mapping[int, ProcState]) -> list[int]:
    """Trainers and those of their workers that do not run freely, trainers first; all of them where nobody is stalled."""
    ours = sorted(hot(roles), key=lambda pid: (roles[pid].kind != "trainer", roles[pid].trainer_pid or 0, roles[pid].index or 0))
    stuck = [pid for pid in ours if (state := states.get(pid)) and (state.starving or state.state not in _FREE)]
    with_trainers = {roles[pid].trainer_pid for pid in stuck} | set(stuck)
    return [pid for pid in ours if pid in with_trainers] if stuck else ours


def family(pid: int, roles: Mapping[int, Role]) -> list[int]:
    """The process itself; a trainer with its workers."""
    role = roles.get(pid)
    if role is None or role.kind != "trainer":
        return [pid]
    return [pid, *(other for other in sorted(hot(roles)) if other != pid and roles[other].trainer_pid == pid)]


def waits(board: Board, roles: Mapping[int, Role], states: Mapping[int, ProcState], verdict: Verdict) -> dict[int, str]:
    """pid -> what its main thread waited for over the diagnosis's window, for those of whom that is known."""
    words = {pid: _words(pid, state, board, roles, states, verdict) for pid, state in states.items()}
    return {pid: text for pid, text in words.items() if text}


def _words(pid: int, state: ProcState, board: Board, roles: Mapping[int, Role], states: Mapping[int, ProcState], verdict: Verdict) -> str:
    share = 100 * state.fractions.get(state.state, 0.0)
    if state.state in _FREE:
        return "ahead: its queue is full" if state.state == "ahead" else ""
    if state.state == "waiting-data":
        return f"waits for data {share:.0f} % of the time{_whom(pid, roles, states)}"
    if state.state == "blocked":
        return f"blocked {share:.0f} % of the time{_on(state)}"
    text = f"{_MEANING.get(state.state, state.state)} {share:.0f} % of the time"
    return text + _behind(pid, board, verdict) if state.state == "runnable" else text


def _whom(trainer_pid: int, roles: Mapping[int, Role], states: Mapping[int, ProcState]) -> str:
    late = [roles[pid] for pid, state in states.items() if state.starving and pid in roles and roles[pid].trainer_pid == trainer_pid]
    names = [role.label for role in sorted(late, key=lambda role: role.index or 0)]
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f", from {', '.join(names[:_NAMED])}{more}"


def _on(state: ProcState) -> str:
    return f", mostly on: {max(state.waits, key=lambda kind: state.waits[kind])}" if state.waits else ""


def _behind(pid: int, board: Board, verdict: Verdict) -> str:
    """Who had the CPUs instead, and the longest single wait that the probes saw lately."""
    culprits = verdict.culprits if any(victim.pid == pid for victim in verdict.victims) else ()
    text = f", behind {', '.join(f'{culprit.name} ({culprit.pid})' for culprit in culprits[:3])}" if culprits else ""
    thread = board.threads.get(pid)
    longest_ms = thread.max_run_delay_ns / 1e6 if thread else 0.0
    return text + (f", longest {longest_ms:.0f} ms" if longest_ms >= 1 else "")
