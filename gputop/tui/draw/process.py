"""What was read of a process on demand (`gputop.session.process`), as lines: facts in pairs, and sections that fold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from gputop.session.process import Connection, Descriptors, Limit, ProcessDetails, Thread
from gputop.system.text import counted, fit
from gputop.tui.draw import Line
from gputop.tui.draw.table import size

SECTIONS = {"t": "threads", "f": "files", "c": "connections", "v": "environment", "l": "limits"}
"""Key -> the section that it opens and folds."""
_PARTS = {"files": "descriptors"}  # section -> the part of ProcessDetails that it shows, where the name differs
_NOT_YET = "being read …"


class Section(Struct):
    """One list: what it is in a line, and its rows."""

    name: str
    summary: str
    rows: list[Line]


def pair(name: str, value: str) -> Line:
    """A fact: its name, and what it is."""
    return [(f"  {name:<18}", "dim"), (value, "")]


def facts(details: ProcessDetails, cpus: str) -> list[Line]:
    """Executable, working directory, start, priority, affinity, container, Slurm job. ``cpus`` are the machine's, in words."""
    return [
        *([(f"  {reason}", "warn")] for reason in (details.gone, details.rights) if reason),
        *_unread(details, "program", ("executable", "working folder", "started")), *_program(details),
        *_unread(details, "priority", ("nice", "CPU affinity")), *_priority(details, cpus),
        *_unread(details, "place", ("container", "Slurm job")), *_place(details),
    ]  # fmt: skip


def _unread(details: ProcessDetails, part: str, names: Iterable[str]) -> list[Line]:
    """The names of a part with the reason why it is not there; nothing where it is, or the process ended before."""
    if getattr(details, part) is not None or details.gone:
        return []
    return [pair(name, details.missing.get(part, _NOT_YET)) for name in names]


def _program(details: ProcessDetails) -> list[Line]:
    program = details.program
    if program is None:
        return []
    exe, cwd = (getattr(program, name) or program.unread.get(name, "none") for name in ("exe", "cwd"))
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(program.started_unix_s))
    return [pair("executable", exe), pair("working folder", f"{cwd}  on {program.cwd_mount}" if program.cwd_mount else cwd),
            pair("started", f"{started}, {_ago(details.unix_s - program.started_unix_s)} before")]  # fmt: skip


def _priority(details: ProcessDetails, cpus: str) -> list[Line]:
    priority = details.priority
    if priority is None:
        return []
    level = f" {priority.io_level}" if priority.io_class in ("realtime", "best effort") else ""
    io = "by the nice value" if priority.io_class == "none" else priority.io_class + level
    return [pair("nice", f"{priority.nice}, I/O class {io}"),
            pair("CPU affinity", f"{ranges(priority.cpus)}  ({len(priority.cpus)} of {cpus})")]  # fmt: skip


def _place(details: ProcessDetails) -> list[Line]:
    place = details.place
    if place is None:
        return []
    closed = place.unread.get("environment", "")
    doubt = f" by its cgroup (its environment: {closed})" if closed else ""
    container = place.container
    words = f"none{doubt}" if container is None else " ".join(part for part in (container.runtime, container.id) if part)
    out = [pair("container", words + (f", pod {container.pod}" if container and container.pod else ""))]
    if place.unread.get("namespaces") or place.namespaces:
        out.append(pair("own namespaces", place.unread.get("namespaces") or ", ".join(place.namespaces)))
    told = place.slurm
    rank = f"rank {told['rank']}{' of ' + told['ranks'] if 'ranks' in told else ''}" if "rank" in told else ""
    others = [f"{name} {told[name]}" for name in ("job", "array", "array task", "name", "partition", "step", "task") if name in told]
    nodes = [f"{name} {told[name]}" for name in ("local rank", "node", "nodes") if name in told]
    out.append(pair("Slurm job", ", ".join(filter(None, (*others, rank, *nodes))).removeprefix("job ") or f"none{doubt}"))
    return out


def sections(details: ProcessDetails) -> list[Section]:
    """Threads, files, connections, environment, limits: each with its rows, or the reason why there are none."""
    made = {"threads": _threads, "files": _files, "connections": _connections, "environment": _environment, "limits": _limits}
    there = (name for name in SECTIONS.values() if not details.gone or getattr(details, _PARTS.get(name, name)) is not None)
    return [_section(name, details, made[name](details)) for name in there]


def _section(name: str, details: ProcessDetails, made: tuple[str, list[Line]]) -> Section:
    part = _PARTS.get(name, name)
    if getattr(details, part) is None:
        return Section(name, details.missing.get(part, _NOT_YET), [])
    summary, rows = made
    cut = f"; here {details.cut[part]}" if part in details.cut else ""
    return Section(name, summary + cut, rows)


def _threads(details: ProcessDetails) -> tuple[str, list[Line]]:
    threads = details.threads or []
    rows: list[Line] = [[(f"    {'thread':<9}{'name':<17}{'state':<6}{'CPU time':>10}  last CPU", "head")]]
    rows += [[(_thread(one), "")] for one in sorted(threads, key=lambda one: -one.cpu_s)]
    return str(len(threads)), rows


def _thread(one: Thread) -> str:
    return f"    {one.tid:<9}{fit(one.name, 16)} {one.state:<6}{one.cpu_s:>8.1f} s{one.cpu:>10}"


def _files(details: ProcessDetails) -> tuple[str, list[Line]]:
    found = details.descriptors or Descriptors([], {}, {})
    mounts = Counter(file.mount for file in found.files if file.kind == "file" and file.mount)
    kinds = ", ".join(counted(count, kind) if kind not in ("other", "memory") else f"{count} {kind}" for kind, count in found.kinds.items())
    rows: list[Line] = [[(f"  {count:>6} on {mount}", "accent")] for mount, count in mounts.most_common()]
    if found.files:
        rows.append([(f"  {'fd':>6}  {'mode':<6}{'position':>9}  path", "head")])
    for file in found.files:
        position = "" if file.position is None else size(file.position)
        rows.append([(f"  {file.fd:>6}  {file.mode:<6}{position:>9}  ", "dim"), (file.target, "")])
    return f"{sum(found.kinds.values()):,} open" + (f": {kinds}" if kinds else ""), rows


def _connections(details: ProcessDetails) -> tuple[str, list[Line]]:
    found = details.connections or []
    states = Counter(f"{one.kind} {one.state}".rstrip() for one in found)
    width = max((len(one.kind) for one in found), default=0)
    rows: list[Line] = [[(f"  {'fd':>6}  {'kind':<{width}} {'state':<12} address", "head")]] if found else []
    rows += [[(f"  {one.fd:>6}  {one.kind:<{width}} {one.state:<12} ", "dim"), (_ends(one), "")] for one in found]
    return ", ".join(f"{count} {state}" for state, count in states.most_common()) or "none open", rows


def _ends(one: Connection) -> str:
    queues = ((one.to_send, "to send"), (one.to_read, "waiting" if one.state == "listen" else "unread"))
    told = [f"{count if one.state == 'listen' else size(count)} {word}" for count, word in queues if count]
    ends = f"{one.local} → {one.remote}" if one.remote else one.local
    return "  ".join(filter(None, (ends, ", ".join(told)))) or "no name"


def _environment(details: ProcessDetails) -> tuple[str, list[Line]]:
    rows: list[Line] = [[(f"    {name}=", "dim"), (value, "")] for name, value in details.environment or ()]
    return f"{counted(len(rows), 'variable')}, as it was started", rows


def _limits(details: ProcessDetails) -> tuple[str, list[Line]]:
    limits, found = details.limits or [], details.descriptors
    used = {} if found is None else {"Max open files": f"{sum(found.kinds.values()):,} open"}
    rows: list[Line] = [[(f"    {'':<20}{'soft':>14}{'hard':>14}", "head")]]
    for one in limits:
        name = one.name.removeprefix("Max ")
        rows.append([(f"    {name:<20}", "dim"), (f"{_amount(one.soft, one)}{_amount(one.hard, one)}  {used.get(one.name, '')}", "")])
    files = next((one for one in limits if one.name == "Max open files"), None)
    return "soft and hard" if files is None else f"open files {_amount(files.soft, files).strip()}", rows


def _amount(value: int | None, limit: Limit) -> str:
    if value is None:
        return f"{'unlimited':>14}"
    unit = {"seconds": " s", "us": " µs"}.get(limit.unit, "")
    return f"{size(value) if limit.unit == 'bytes' else f'{value:,}{unit}':>14}"


def ranges(cpus: list[int]) -> str:
    """``0-3,8`` of sorted numbers, as taskset takes it."""
    out: list[list[int]] = []
    for cpu in cpus:
        if out and cpu == out[-1][1] + 1:
            out[-1][1] = cpu
        else:
            out.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


def _ago(seconds: float) -> str:
    """``3 d 4 h``, ``4 h 2 min``, ``2 min 5 s``, ``5 s``."""
    left = int(max(0.0, seconds))
    words: list[str] = []
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left >= unit and len(words) < 2:
            words.append(f"{left // unit} {name}")
            left %= unit
        elif words:
            break
    return " ".join(words) or "0 s"
