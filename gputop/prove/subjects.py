"""Finds the threads, processes and files that a change touches, and the heirs of a changed setting.

Threads and processes that begin during an experiment inherit what it has set, and get what their parent had before. Heirs are new threads
of processes in the journal, their descendants, and orphans that share a process group or session with them, if they have the very value
that the experiment sets. A process that asked for that value itself since cannot be distinguished from an heir.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from gputop.prove.change import DEADLINE, SETTINGS, Change, Record, autogroup_of, folder_inode, held, is_new, read_value
from gputop.prove.permission import is_own, touchable
from gputop.prove.processes import GONE, Proc, Table, ancestors, read_processes, read_threads


def find(changes: tuple[Change, ...], others: frozenset[int] = frozenset()) -> list[Record]:
    """Records of what the changes touch now, with the present values; subjects that end or cannot be read are left out. Raises
    OSError for a file.

    ``others``: processes of other users that the user agreed to; a process that has become another user's since is left out.
    """
    found: list[Record] = []
    table = read_processes() if any(change.target is not None for change in changes) else {}
    for change in changes:
        if change.target is None:
            record = Record(change.setting, change.new, "", path=change.path, inode=folder_inode(change.path))
            found.append(replace(record, old=read_value(record)))
            continue
        root = table.get(change.target.pid)
        if root is not None and root.start_ticks == change.target.start_ticks and (root.pid in others or _is_still_own(root)):
            for proc in touchable(table, root):
                found += _of_process(change, proc)
    return found


def _is_still_own(proc: Proc) -> bool:
    try:
        return is_own(proc)
    except ProcessLookupError:
        return False


def _of_process(change: Change, proc: Proc) -> list[Record]:
    found, setting = [], SETTINGS[change.setting]
    for thread in read_threads(proc.pid) if setting.each_thread else [proc]:
        blank = Record(
            change.setting, change.new, "", proc.pid, proc.start_ticks, thread.pid, thread.start_ticks, proc.group, proc.session
        )  # fmt: skip
        try:
            if change.setting == "autogroup":
                blank = replace(blank, path=autogroup_of(proc.pid)[0])
            old = read_value(blank)
            if change.setting != "policy" or int(old.split()[0]) & ~os.SCHED_RESET_ON_FORK != DEADLINE:
                found.append(replace(blank, old=old))
        except (*GONE, ValueError):
            continue
    return found


def inherited(records: list[Record], since_ticks: int) -> list[Record]:
    """Records of the heirs of a changed setting, with the old values of their parents. Raises OSError if no more files can be opened."""
    found: list[Record] = []
    by_setting: dict[str, list[Record]] = {}
    for record in records:
        if record.setting in SETTINGS and SETTINGS[record.setting].each_thread:
            by_setting.setdefault(record.setting, []).append(record)
    table = read_processes() if by_setting else {}
    for of_setting in by_setting.values():
        parents = {record.pid: record for record in reversed(of_setting)}  # the first of each process: its main thread
        known = {(record.tid, record.tid_ticks) for record in of_setting}
        for proc in table.values():
            parent = _parent(proc, parents, table, since_ticks)
            if parent is not None:
                found += [one for one in _of_heir(parent, proc) if (one.tid, one.tid_ticks) not in known and one.tid_ticks >= since_ticks]
    return found


def _of_heir(parent: Record, proc: Proc) -> list[Record]:
    """Records, with the old value of ``parent``, of the threads of a process that have the experiment's value."""
    found, old = [], parent.old
    if parent.setting == "policy" and int(old.split()[0]) & os.SCHED_RESET_ON_FORK:
        old = f"{os.SCHED_OTHER} 0"
    for thread in read_threads(proc.pid):
        try:
            with held(proc.pid, proc.start_ticks):
                value = SETTINGS[parent.setting].read(thread.pid)
        except (*GONE, ValueError):
            continue
        if is_new(parent, value):
            ids = {"pid": proc.pid, "start_ticks": proc.start_ticks, "tid": thread.pid, "tid_ticks": thread.start_ticks}
            found.append(replace(parent, old=old, **ids))
    return found


def _parent(proc: Proc, parents: dict[int, Record], table: Table, since_ticks: int) -> Record | None:
    """The record of the value that a process has or inherited; None if it has nothing to do with the experiment."""
    own = parents.get(proc.pid)
    if own is not None and own.start_ticks == proc.start_ticks:
        return own
    if proc.start_ticks < since_ticks or proc.ended or proc.kthread:
        return None
    for pid in ancestors(table, proc.pid):
        if pid in parents and pid in table and table[pid].start_ticks == parents[pid].start_ticks:
            return parents[pid]
    alike = (one for one in parents.values() if _is_unusual(one) and (proc.group == one.group or proc.session == one.session))
    return next(alike, None)


def _is_unusual(record: Record) -> bool:
    """True if the new value is rare, so that an orphan with it must have inherited it. Only a narrower mask is rare."""
    narrower = record.setting == "cpu-mask" and set(record.new.split(",")) < set(record.old.split(","))
    return narrower or record.setting in ("policy", "nice", "io-priority")
