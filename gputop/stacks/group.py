"""Equal stacks folded to groups: ``6 of 8 workers: cv2.imread ← __getitem__ data.py:41``. Pure functions.

Text in a group is cleaned and bounded, ready for a terminal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from gputop.model.frame import Stack
from gputop.model.roles import PIN_THREAD, Role
from gputop.stacks.frames import Line, own_call, own_part, parse
from gputop.stacks.source_line import key
from gputop.system.text import clean

_WIDTH = 200  # characters of a text: twice as many are kept
_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")  # a call in a line of source
_KEYWORDS = frozenset({"if", "elif", "while", "for", "in", "not", "and", "or", "return", "yield", "await", "with", "assert", "lambda"})
# (function, file) that Python's own helper threads run in a DataLoader worker.
_HELPERS = frozenset({
    ("_feed", "queues.py"), ("_serve", "resource_sharer.py"), ("_handle_results", "pool.py"), ("_handle_tasks", "pool.py"),
})  # fmt: skip


class Member(Struct, frozen=True):
    """One thread of a group."""

    pid: int
    tid: int
    label: str  # ``worker 2``, ``train.py rank 0``, ``process 3821``; with the thread's name if it is not the main thread
    wait: str


class FrameText(Struct, frozen=True):
    """One frame: function, file with line, source text (empty: unknown)."""

    name: str
    place: str
    source: str
    library: bool


class Group(Struct, frozen=True):
    """Threads with equal stacks. ``rank``: order of groups: 0 trainers, 1 workers, 2 other processes, 3 other threads, 4 helper threads."""

    title: str
    rank: int
    members: tuple[Member, ...]
    frames: tuple[FrameText, ...]
    kernel: tuple[str, ...]  # kernel functions of the first member, innermost first
    waits: tuple[tuple[str, int], ...]  # (wait in words, number of members), most first
    error: str
    notes: tuple[str, ...]  # missing parts of the stacks, and why


def group(stacks: Sequence[Stack], roles: Mapping[int, Role] | None = None) -> list[Group]:
    """Fold ``stacks`` by equal Python frames; without Python frames by equal error and kernel stack."""
    named = roles or {}
    totals = Counter(_kind(pid, named) for pid in {stack.pid for stack in stacks})
    piles: dict[tuple[object, ...], list[Stack]] = {}
    for stack in stacks:
        piles.setdefault(_key(stack, named), []).append(stack)
    groups = [_group(pile, named, totals) for pile in piles.values()]
    return sorted(groups, key=lambda one: (one.rank, one.members[0].tid != one.members[0].pid, -len(one.members), one.members[0].pid))


def _key(stack: Stack, roles: Mapping[int, Role]) -> tuple[object, ...]:
    rank = _rank(stack, roles)
    if stack.python:
        return rank, tuple(_own_lines(stack))
    return rank, _without_pid(stack), tuple(stack.kernel)


def _own_lines(stack: Stack) -> list[Line]:
    return own_part([parse(text) for text in stack.python])


def _without_pid(stack: Stack) -> str:
    return re.sub(rf"\b{stack.pid}\b", "PID", stack.error)


def _kind(pid: int, roles: Mapping[int, Role]) -> str:
    role = roles.get(pid)
    return role.kind if role else "process"


def _rank(stack: Stack, roles: Mapping[int, Role]) -> int:
    if stack.tid == stack.pid:
        return {"trainer": 0, "worker": 1}.get(_kind(stack.pid, roles), 2)
    if PIN_THREAD in stack.thread:
        return 0
    return 4 if is_helper(stack) else 3


def is_helper(stack: Stack) -> bool:
    """True if the stack is that of multiprocessing's helper thread, which waits for work whatever its process does."""
    lines = map(parse, stack.python)
    return any((line.name.rpartition(".")[2], line.file.rpartition("/")[2]) in _HELPERS for line in lines)


def _group(pile: list[Stack], roles: Mapping[int, Role], totals: Counter[str]) -> Group:
    first = pile[0]
    members = tuple(Member(stack.pid, stack.tid, _label(stack, roles), _clean(stack.wait)) for stack in pile)
    return Group(
        title=_clean(f"{_members_words(pile, members, roles, totals)}: {_error(pile) or _place(first)}"),
        rank=_rank(first, roles),
        members=members,
        frames=tuple(_frame(line, first) for line in _own_lines(first)),
        kernel=tuple(map(_clean, first.kernel)),
        waits=tuple(Counter(member.wait for member in members if member.wait).most_common()),
        error=_clean(_error(pile)),
        notes=tuple(sorted({_clean(f"{part}: {why}") for stack in pile for part, why in stack.missing.items()})),
    )


def _frame(line: Line, stack: Stack) -> FrameText:
    place = f"{line.short_file}:{line.line}" if line.line else line.short_file
    return FrameText(_clean(line.name), _clean(place), _clean(stack.source.get(key(line), "")), line.library)


def _clean(text: str) -> str:
    return clean(text, _WIDTH * 2)


def _label(stack: Stack, roles: Mapping[int, Role]) -> str:
    role = roles.get(stack.pid)
    name = role.label if role else f"process {stack.pid}"
    return _clean(name if stack.tid == stack.pid else f"{name}, thread {stack.thread or stack.tid}")


def _members_words(pile: list[Stack], members: Sequence[Member], roles: Mapping[int, Role], totals: Counter[str]) -> str:
    """``6 of 8 workers``, ``train.py rank 0``, ``3 of 3 processes``, ``24 helper threads``."""
    rank = _rank(pile[0], roles)
    if rank == 4:
        return f"{len(pile)} helper thread{'s' if len(pile) > 1 else ''}"
    kind = _kind(pile[0].pid, roles)
    same_kind = all(stack.tid == stack.pid and _kind(stack.pid, roles) == kind for stack in pile)
    if same_kind and len(pile) > 1:
        return f"{len(pile)} of {totals[kind]} {_PLURAL[kind]}"
    if len(pile) == 1:
        return members[0].label
    return f"{len(pile)} threads"


_PLURAL = {"trainer": "trainers", "worker": "workers", "helper": "helpers", "process": "processes"}


def _place(stack: Stack) -> str:
    """The call and the line of the user's code that made it; without a Python stack, the wait or system call."""
    lines = _own_lines(stack)
    if not lines:
        return stack.wait or stack.syscall or "no stack"
    own, call = own_call(lines)
    if own is None:
        return f"{lines[0].name} {lines[0].place}"
    call = call or _called(own, stack)
    return f"{call} ← {own.name} {own.place}" if call else f"{own.name} {own.place}"


def _called(line: Line, stack: Stack) -> str:
    """The C function in which a thread waits: the only call in its source line; empty if the line has several."""
    text = stack.source.get(key(line), "").partition("#")[0]
    calls = [name for name in _CALL.findall(text) if name not in _KEYWORDS]
    return calls[0] if len(calls) == 1 and stack.state in ("S", "D") else ""


def _error(pile: Iterable[Stack]) -> str:
    """The error of all stacks in one sentence: the pid in its command becomes all their pids."""
    stacks = list(pile)
    first = stacks[0]
    pids = " ".join(str(stack.pid) for stack in stacks)
    return re.sub(rf"\b{first.pid}\b", pids, first.error)
