"""Change: the memory limit of the job's control group, and of lower limits above it, is raised, at most twofold and by
half of what the host has available (memory-pressure): v1 memory.limit_in_bytes and memory.memsw, v2 memory.high and memory.max.

May be kept: yes.
Right needed: to write the groups' files, so root, or groups that were delegated to this user.
Undo: each file gets its old text, the last change first. If the job holds more now, the kernel first has to take pages from it: v1 refuses
until it has, and memory.max of v2 is set only once the group fits, for it would kill. It is tried again for a minute, and a failure is
reported.
"""

from __future__ import annotations

from gputop.prove.change import FILE, Case, Change, Plan, Refusal
from gputop.prove.groups import content, path_of
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene
from gputop.sources.files import read_text

NAME = "memory-limit"
FILES = ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max", "memory.high")  # in this order, for each limits the next
_NO_LIMIT = 1 << 62  # bytes; v1 writes "no limit" as the largest multiple of the page size
LEAST_BYTES = 64 << 20  # of a raise that is worth a try (guess)


def _make(case: Case, scene: Scene) -> Plan | Refusal | None:
    job = scene.job()
    if isinstance(job, Refusal):
        return job
    limits: dict[tuple[str, str], int] = {}  # (folder, path) -> bytes of the tightest limit there
    for target in (case.trainer, *case.family):
        place = scene.groups.place(target.pid, "memory") if scene.living(target) else None
        for folder in place.folders if place is not None else ():
            if found := [value for name in FILES if (value := _bytes(folder, name)) is not None]:
                limits[folder, path_of(place, folder)] = min(found)  # type: ignore[arg-type]
    if not limits:
        return Refusal("the host's memory is short, not a control group's: end what holds it (ps -eo pid,rss,comm --sort=-rss | head)")
    tightest = min(limits.values())
    more = min(tightest, _available_bytes() // 2)
    if more < LEAST_BYTES:
        return Refusal(f"the host has only {2 * more >> 20} MB available: a higher limit would move the shortage there")
    new = tightest + more
    changes, groups = [], []
    for (folder, path), limit in sorted(limits.items(), key=lambda one: len(one[0][0])):
        if limit < new:
            groups.append(path)
            changes += [Change(FILE, str(new), path=f"{folder}/{name}") for name in FILES if (_bytes(folder, name) or new) < new]
    refused = next((told for change in changes if (told := scene.refuse_file(change.path))), None)
    return refused or scene.planned(Plan(NAME, f"memory limit of {', '.join(groups)} to {new >> 20} MB", tuple(changes), may_keep=True))


def _bytes(folder: str, name: str) -> int | None:
    """A cgroup's memory limit in bytes, or None."""
    text = content(folder, name)
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None


def _available_bytes() -> int:
    """MemAvailable of /proc/meminfo."""
    lines = (line.split() for line in read_text("/", "proc/meminfo").splitlines())
    return next((1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:"), 0)


INTERVENTION = Intervention(NAME, ("memory-pressure",), _make)
