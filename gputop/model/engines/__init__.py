"""Inference engines: one file each, which states how its processes are called, where its metrics are, and what they are named.

A new engine is a module with an `ENGINE`, and its word in `NAMES`. Names and metrics are facts of the versions that each file states.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache

from msgspec import Struct

from gputop.model.frame import ProcInfo
from gputop.model.roles import is_unnamed_child, program_name

NAMES = ("vllm", "sglang", "tgi", "llamacpp", "triton")
"""Modules of this folder."""
FRONT, SCHEDULER, WORKER, TOKENIZER, DETOKENIZER, OTHER = "front", "scheduler", "worker", "tokenizer", "detokenizer", "other"
"""Parts of an engine: it takes requests and answers them; forms batches, and on one GPU launches too; computes; makes tokens of text; makes
text of tokens; anything else."""
MOST_LEVELS = 8  # ancestors looked at of a process on a GPU: a worker, its engine, its server, a launcher (guess)
MOST_MEMBERS = 256  # processes of one engine that are looked at (guess)
MOST_KNOWN = 1024  # programs of which is remembered whether they are an engine's


class Metric(Struct, frozen=True):
    """One of an engine's metrics, and the field of `gputop.model.serving.Serving` that it fills."""

    name: str  # without the ``_bucket``, ``_sum`` or ``_count`` of a histogram
    field: str
    scale: float = 1.0  # factor from the metric's unit to the field's
    takes: str = ""  # of a histogram: ``sum`` or ``count`` for one of these alone; empty: all of its buckets


class Engine(Struct, frozen=True):
    """One inference engine."""

    name: str  # as frames have it
    title: str  # as people write it
    versions: str  # of which the facts are
    programs: frozenset[str]  # programs and modules, in small letters: ``vllm`` also of ``vllm.entrypoints.openai.api_server``
    titles: tuple[tuple[str, str], ...]
    """(beginning of a process's title, in small letters and of 15 at most, for a comm has no more; its part). With ``::`` first: whatever
    stands before it."""
    port: int  # where it serves metrics if its command line names no port
    flags: tuple[str, ...]  # of its command line that name this port
    prefix: str  # of all of its metrics
    metrics: tuple[Metric, ...]  # of several for one field, the first that the page has counts
    off: str  # what to do where there are none
    part: str = FRONT  # of its processes without a title


@cache
def engines() -> tuple[Engine, ...]:
    """All engines."""
    return tuple(importlib.import_module(f"{__name__}.{name}").ENGINE for name in NAMES)


def names_of(info: ProcInfo) -> tuple[str, ...]:
    """Names of the program, script or module, in small letters, and the beginning of a module or title: ``vllm`` of
    ``vllm.entrypoints.api_server``, ``vllm::`` of ``VLLM::EngineCore``."""
    return _names(info.exe, info.comm, tuple(info.cmdline))


@lru_cache(maxsize=MOST_KNOWN)
def _names(exe: str, comm: str, words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_named(ProcInfo(0, 0, exe=exe, comm=comm, cmdline=list(words))))


def _named(info: ProcInfo) -> Iterator[str]:
    for name in (info.comm.lower(), program_name(info).lower()):
        yield name
        if "::" in name:
            yield name[: name.index("::") + 2]
        elif not name.endswith(".py"):
            yield name.partition(".")[0]


def engine_of(info: ProcInfo) -> Engine | None:
    """The engine of which this is a process, by its program or title; None for any other process."""
    found = _known(info.exe, info.comm, tuple(info.cmdline))
    return None if found is None else found[0]


def part_of(info: ProcInfo) -> str:
    """The part that a process plays in its engine; empty if its program and title do not name one."""
    found = _known(info.exe, info.comm, tuple(info.cmdline))
    return "" if found is None else found[1]


@lru_cache(maxsize=MOST_KNOWN)
def _known(exe: str, comm: str, words: tuple[str, ...]) -> tuple[Engine, str] | None:
    """(the engine, the part) of a program with this command line."""
    info = ProcInfo(0, 0, exe=exe, comm=comm, cmdline=list(words))
    names = set(names_of(info))
    for engine in engines():
        for beginning, part in engine.titles:
            if any(beginning in name if beginning.startswith("::") else name.startswith(beginning) for name in names):
                return engine, part
        if names & engine.programs:
            return engine, engine.part
    return None


class Family(Struct, frozen=True):
    """The processes of one engine on this host."""

    engine: Engine
    top: int  # pid of the process that started the others, as far as it is the engine's
    parts: Mapping[int, str]  # pid -> part; empty where that is not known

    def pids(self, *parts: str) -> list[int]:
        """Its processes that play one of these parts."""
        return [pid for pid, part in self.parts.items() if part in parts]


def top_of(infos: Mapping[int, ProcInfo], pid: int) -> tuple[Engine, int] | None:
    """(the engine that a process belongs to, the engine's topmost process); None if neither it nor what started it is an engine's.

    Children that `multiprocessing` has made, and that have not named themselves, are passed by.
    """
    found, info = None, infos.get(pid)
    for _ in range(MOST_LEVELS):
        if info is None:
            break
        engine = engine_of(info)
        if engine is not None and (found is None or found[0] is engine):
            found = engine, info.pid
        elif engine is not None or not (info.pid == pid or is_unnamed_child(info)):
            break
        info = infos.get(info.ppid)
    return found


def families(infos: Mapping[int, ProcInfo], pids: Iterable[int]) -> dict[int, Family]:
    """Topmost process -> the engine's family, for each engine that one of these processes belongs to."""
    tops = {top: engine for pid in pids if (found := top_of(infos, pid)) is not None for engine, top in [found]}
    if not tops:
        return {}
    children: dict[int, list[int]] = {}
    for info in infos.values():
        children.setdefault(info.ppid, []).append(info.pid)
    return {top: Family(engine, top, _members(infos, children, engine, top, tops.keys())) for top, engine in tops.items()}


def _members(
    infos: Mapping[int, ProcInfo], children: Mapping[int, list[int]], engine: Engine, top: int, tops: Collection[int]
) -> dict[int, str]:
    """pid -> part of all descendants, without those of another engine that it started."""
    found, due = dict[int, str](), [top]
    while due and len(found) < MOST_MEMBERS:
        pid = due.pop(0)
        info = infos[pid]
        found[pid] = part_of(info) if engine_of(info) in (engine, None) else OTHER
        due += [child for child in children.get(pid, ()) if child in infos and child not in found and child not in tops]
    return found
