"""Dumps of torch's flight recorder: the last collectives that each rank began, and which rank did not come to the one that others wait in.

Each process writes a file of its own (torch/csrc/distributed/c10d/FlightRecorder.hpp; version 2.4 in torch 2.5, 2.10 in torch 2.13): a
pickle, or JSON where a handler of torch.distributed.debug wrote it. Its rank stands in the file's name alone.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, convert, field

from gputop.model.flight import MOST_STOPS, Flight, FlightRank, FlightStop
from gputop.model.ranges import MOST_PID
from gputop.system.errors import Unavailable, UserError
from gputop.system.text import clean, counted, file_size, ranges
from gputop.traces.environment import FLIGHT
from gputop.traces.pickled import MOST_VALUES, TOO_MANY, read_pickle

MOST_BYTES = 64 << 20  # of a dump: 2,000 collectives with their stacks are 2 MB
TOO_LARGE = f"it is larger than {MOST_BYTES >> 20} MiB"
MOST_DUMPS = 1024  # that are read together
MOST_CALLS = 100_000  # of a dump that are looked at
MOST_GROUPS = 1024  # of a dump: a rank is a member of some dozens
MOST_CHARS = 120  # of a name
FRESH_S = 3.0  # s: a call that began so shortly before the dump is under way, not stuck (a choice)
_MOST_SIZES = 8  # tensors of a call whose sizes are kept
_MOST_MEMBERS = 1 << 16  # of a group
_RANK = re.compile(r"(\d{1,6})(?:\.json|\.pickle|\.pkl)?\Z")
_NUMBER = re.compile(r"\d{1,9}")
_PEER = re.compile(r"(send|recv) (\d{1,6})(?:->|<-)(\d{1,6})")
_BYTES_OF = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
_ALIKE = ("all_reduce", "allreduce", "broadcast", "reduce_scatter", "_all_gather_base", "all_gather_into")
"""Collectives whose ranks bring tensors of one size."""
_OF_LIBRARIES = ("/torch/", "/deepspeed/", "/accelerate/", "/lightning/", "/pytorch_lightning/", "/transformers/", "<frozen ")


_Side = tuple[str, str, int, int]  # group, ``send`` or ``recv``, own rank in the group, the other one
"""What a transfer is to one of its two ranks."""


class CallSite(Struct, frozen=True):
    """A frame of the Python stack that began a call."""

    filename: str = ""
    line: int = 0
    name: str = ""


class Call(Struct, frozen=True):
    """One call of a rank, a collective or a transfer between two ranks, as torch dumps it."""

    profiling_name: str
    pg_id: int = 0
    process_group: Annotated[list[str], Meta(max_length=4)] = field(default_factory=list)  # name, description
    collective_seq_id: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    p2p_seq_id: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    is_p2p: bool = False
    input_sizes: list[list[int]] = field(default_factory=list)
    input_dtypes: list[str] = field(default_factory=list)
    state: str = ""  # ``scheduled``, ``started``, ``completed``; gloo's stays at the first
    retired: bool = False
    time_created_ns: int = 0  # Unix time
    frames: list[CallSite] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``all_reduce``, without the library's name."""
        return clean(self.profiling_name.partition(":")[2] or self.profiling_name, MOST_CHARS)

    @property
    def group(self) -> str:
        """Its description, or its name where it has none."""
        name, description = (*self.process_group[:2], "", "")[:2]
        return clean(description if description not in ("", "undefined") else f"group {name}" if name else "", MOST_CHARS)

    @property
    def bytes(self) -> int | None:
        """Size of the tensors that this rank brings; None where a type is unknown."""
        total = 0
        for sizes, kind in zip(self.input_sizes, self.input_dtypes, strict=False):
            if kind not in _BYTES_OF or any(not 0 <= size < 1 << 48 for size in sizes):
                return None
            count = 1
            for size in sizes[:16]:
                count = min(count * size, 1 << 56)
            total += count * _BYTES_OF[kind]
        return min(total, 1 << 60) if self.input_dtypes else None

    @property
    def place(self) -> str:
        """``train.py:88 in step``: the innermost frame outside of libraries."""
        own = [one for one in self.frames[:64] if one.filename and not any(part in one.filename for part in _OF_LIBRARIES)]
        return clean(f"{os.path.basename(own[0].filename)}:{own[0].line} in {own[0].name}", MOST_CHARS) if own else ""


class _Status(Struct, frozen=True):
    """Progress of a group on a rank."""

    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class _Group(Struct, frozen=True):
    desc: str = ""
    ranks: str | list[int] = ""


class Dump:
    """Dump of one rank."""

    def __init__(self, rank: int, content: Any, at_ns: int = 0) -> None:
        """``content``: the dict of a dump. ``at_ns``: Unix time of the dump; 0 where that is not known. Raises Unavailable."""
        if not isinstance(content, dict) or not isinstance(content.get("entries"), (list, tuple)):
            raise Unavailable("it is no dump of a flight recorder: it has no entries")
        self.rank, self.at_ns = rank, at_ns
        version = content.get("version")
        self.version = clean(version[:MOST_CHARS], 20) if isinstance(version, str) else ""
        entries = content["entries"][-MOST_CALLS:]
        self.calls = [one for entry in entries if (one := _converted(entry, Call)) is not None]
        self.unsound = len(entries) - len(self.calls)
        self._status = _each(content.get("pg_status"), _Status)
        self._groups = _each(content.get("pg_config"), _Group)
        self._members: dict[str, tuple[int, ...]] = {}

    @cached_property
    def by_group(self) -> dict[str, list[Call]]:
        """Group's name -> its calls, in order."""
        found: dict[str, list[Call]] = {}
        for one in self.calls:
            if (key := _key(one)) in found or len(found) < MOST_GROUPS:
                found.setdefault(key, []).append(one)
        return found

    @cached_property
    def standing(self) -> set[str]:
        """Names, for people, of the groups in whose collectives it stands."""
        calls = {group: self.call(group, began) for group in self.by_group for began, ended in [self.reached(group)] if began > ended}
        return {call.group for call in calls.values() if call is not None}

    @cached_property
    def open_sides(self) -> set[_Side]:
        """Sends and receives that have not ended."""
        return {side for call in self.transfers() if (side := _side(call)) is not None}

    def members(self, group: str) -> tuple[int, ...]:
        """The global ranks of a group, in order; empty where the dump does not have them (gloo's)."""
        if (found := self._members.get(group)) is None:
            known = self._groups.get(group, _Group()).ranks
            numbers = known if isinstance(known, list) else map(int, _NUMBER.findall(known[: 8 * _MOST_MEMBERS]))
            found = self._members[group] = tuple(sorted({rank for rank in list(numbers)[:_MOST_MEMBERS] if 0 <= rank <= MOST_PID}))
        return found

    def reached(self, group: str) -> tuple[int, int]:
        """(last collective of the group that it has begun, last one that has ended); 0 for none."""
        calls = [one for one in self.by_group.get(group, ()) if not one.is_p2p]
        began = max((one.collective_seq_id for one in calls), default=0)
        ended = max((one.collective_seq_id for one in calls if one.state == "completed"), default=0)
        if calls and (status := self._status.get(str(calls[-1].pg_id))) is not None:
            began, ended = max(began, status.last_enqueued_collective), max(ended, status.last_completed_collective)
        return began, ended

    def call(self, group: str, number: int) -> Call | None:
        """A collective of a group, by its number."""
        calls = reversed(self.by_group.get(group, ()))
        return next((one for one in calls if not one.is_p2p and one.collective_seq_id == number), None)

    def transfers(self) -> list[Call]:
        """Sends and receives that have not ended."""
        return [one for one in self.calls if one.is_p2p and one.state != "completed" and not one.retired]


def _converted(value: Any, kind: Any) -> Any:
    """A value as a struct, or None; numbers may be texts, as torch writes some in JSON."""
    try:
        return convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError, ValueError, OverflowError):
        return None


def _each(value: Any, kind: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    found = {str(name)[:1000]: _converted(one, kind) for name, one in list(value.items())[:_MOST_MEMBERS]}
    return {name: one for name, one in found.items() if one is not None}


def _key(call: Call) -> str:
    return call.process_group[0] if call.process_group else str(call.pg_id)


def read_dump(data: bytes, rank: int, at_ns: int = 0) -> Dump:
    """The dump in a file's content, a pickle or JSON. Raises Unavailable with the reason if it is none."""
    if len(data) > MOST_BYTES:
        raise Unavailable(TOO_LARGE)
    if data[:1] == b"\x80":
        return Dump(rank, read_pickle(data), at_ns)
    if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise Unavailable(TOO_MANY)
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unavailable("it is neither a pickle nor JSON, or is not whole") from None
    return Dump(rank, content, at_ns)


def read_files(paths: Sequence[str]) -> Flight:
    """The answer of the dumps of several ranks, of this machine or of several. Raises UserError if a file is no dump."""
    if len(paths) > MOST_DUMPS:
        raise UserError(f"at most {MOST_DUMPS:,} dumps are read together", code=2)
    dumps: dict[int, Dump] = {}
    for path in paths:
        named = _RANK.search(os.path.basename(path))
        if named is None:
            raise UserError(f"{clean(path)}: the rank is not at the end of its name, as torch writes it: rename it, such as dump_3")
        if int(named[1]) in dumps:
            raise UserError(f"{clean(path)}: there is another dump of rank {int(named[1])}: give those of one job", code=2)
        try:
            dumps[int(named[1])] = read_dump(_content(path), int(named[1]))
        except OSError as error:
            raise UserError(f"cannot read {clean(path)}: {error.strerror}") from None
        except Unavailable as why:
            raise UserError(f"{clean(path)}: {why.reason}") from None
    return judged(dumps, [_rank(one) for one in dumps.values()])


def report_folder(folder: str, notify: Callable[[str], None]) -> None:
    """Report what the dumps hold that torch left in a job's folder, as it does after a collective that timed out; nothing without any."""
    with suppress(OSError):
        paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.startswith(FLIGHT) and _RANK.search(name)]
        if not paths:
            return
        try:
            words = read_files(paths).words
        except UserError as error:
            words = str(error)
        notify(f"torch's flight recorder: {words}; its dumps: {os.path.join(folder, FLIGHT)}*")


def _content(path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Unavailable("it is no file")
        return file.read(MOST_BYTES + 1)


def _rank(one: Dump) -> FlightRank:
    note = f"{counted(one.unsound, 'call')} of another shape left out" if one.unsound else None
    return FlightRank(one.rank, 0, one.version, len(one.calls), note)


def judged(dumps: Mapping[int, Dump], ranks: Sequence[FlightRank], world: int = 0) -> Flight:
    """The answer of dumps. ``world``: ranks of the job; 0 where that is not known."""
    stops = sorted(_stops(dumps, world), key=lambda one: _order(one, dumps))[:MOST_STOPS]
    if stops:
        words = stops[0].words
    elif not any(one.calls for one in dumps.values()):
        words = "no rank has recorded a collective" if dumps else "there is no dump"
    else:
        words = f"no collective stands: each that the {counted(len(dumps), 'rank')} began has ended, or began just now"
    return Flight(words, stops, list(ranks))


_RANKING = {"missing": 0, "differs": 1, "late": 2, "inside": 3}


def _order(stop: FlightStop, dumps: Mapping[int, Dump]) -> tuple[bool, int, int]:
    """Sort key: a rank that is missing here because it waits in another group's collective explains nothing, so it comes later."""
    waits = any(dumps[rank].standing - {stop.group} for rank in stop.missing if rank in dumps)
    return waits, _RANKING[stop.kind], -len(stop.waiting)


def _stops(dumps: Mapping[int, Dump], world: int) -> Iterator[FlightStop]:
    for group in dict.fromkeys(name for dump in dumps.values() for name in dump.by_group):
        members = set().union(*(dump.members(group) for dump in dumps.values()))
        if not members:  # gloo does not write them
            members = {rank for rank, dump in dumps.items() if group in dump.by_group}
            if world and group in ("0", "default_pg"):
                members |= set(range(min(world, _MOST_MEMBERS)))
        stop = _of_group(group, sorted(members), dumps)
        if stop is not None:
            yield stop
    yield from _of_transfers(dumps)


def _of_group(group: str, members: list[int], dumps: Mapping[int, Dump]) -> FlightStop | None:
    """The collective in which ranks of a group stand; None if each has ended."""
    reached = {rank: dumps[rank].reached(group) for rank in members if rank in dumps}
    unknown = [rank for rank in members if rank not in dumps]
    if not any(began > ended for began, ended in reached.values()):
        return None
    least = min(began for began, _ in reached.values())
    if least < max(began for began, _ in reached.values()):
        missing = [rank for rank, (began, _) in reached.items() if began == least]
        return _stop("missing", group, least + 1, [rank for rank in reached if rank not in missing], missing, unknown, dumps)
    number = min(ended for began, ended in reached.values() if began > ended) + 1
    here = {rank: call for rank in reached if (call := dumps[rank].call(group, number)) is not None}
    usual = _usual(here)
    if odd := [rank for rank, call in here.items() if _shape(call) != usual]:
        return _stop("differs", group, number, [rank for rank in here if rank not in odd], odd, unknown, dumps)
    states = {rank: call.state for rank, call in here.items()}
    if "started" in states.values() and "scheduled" in states.values():
        not_begun = [rank for rank, state in states.items() if state == "scheduled"]
        return _stop("late", group, number, [rank for rank in here if rank not in not_begun], not_begun, unknown, dumps)
    return _stop("inside", group, number, list(here), [], unknown, dumps)


def _shape(call: Call) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Name and sizes of a call, which must be the same on all ranks."""
    sizes = tuple(tuple(one[:16]) for one in call.input_sizes[:_MOST_SIZES]) if any(name in call.name for name in _ALIKE) else ()
    return call.name, sizes


def _usual(here: Mapping[int, Call]) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """The shape of most ranks; of two that differ, that of the lowest rank."""
    shapes = [_shape(here[rank]) for rank in sorted(here)]
    return max(shapes, key=shapes.count, default=("", ()))


def _stop(
    kind: str, group: str, number: int, waiting: list[int], missing: list[int], unknown: list[int], dumps: Mapping[int, Dump]
) -> FlightStop | None:  # fmt: skip
    calls = [call for rank in waiting if (call := dumps[rank].call(group, number)) is not None]
    call = calls[0] if calls else None
    waited_s = _waited_s(call, dumps[waiting[0]]) if call is not None else None
    if waited_s is not None and waited_s < FRESH_S:
        return None  # the ranks were asked one after the other, and go on
    instead = ""
    if missing:
        other = dumps[missing[0]].call(group, number) if kind == "differs" else next(reversed(dumps[missing[0]].calls), None)
        instead = _called(other) if other is not None else ""
    return _worded(kind, call, number, waiting, missing, unknown, instead, waited_s, group)


def _waited_s(call: Call, dump: Dump) -> float | None:
    waited_s = (dump.at_ns - call.time_created_ns) / 1e9
    return round(waited_s, 1) if dump.at_ns and call.time_created_ns and 0.0 <= waited_s < 1e8 else None


def _worded(
    kind: str, call: Call | None, number: int, waiting: list[int], missing: list[int], unknown: list[int], instead: str,
    waited_s: float | None, group: str,
) -> FlightStop:  # fmt: skip
    name, place = (call.name, call.place) if call is not None else ("a collective that its buffer no longer holds", "")
    group = (call.group if call is not None else "") or clean(group, MOST_CHARS)
    size = call.bytes if call is not None else None
    what = f"{name} {number}{f' of {file_size(size)}' if size is not None else ''}{f' ({group})' if group else ''}"
    late, others = _ranks(missing), _ranks(waiting)
    far = f"; there is no dump of {_ranks(unknown)}" if unknown else ""
    verb = "has" if len(missing) == 1 else "have"
    words = {
        "missing": f"{late} {verb} not come to {what}, in which {others} {'waits' if len(waiting) == 1 else 'wait'}"
                   + (f"; last it came to {instead}" if instead and len(missing) == 1 else ""),
        "differs": f"{late} came to {instead}, where {others} came to {what}",
        "late": f"the GPU of {late} has not begun {what}, which runs on {others}: earlier work holds it up",
        "inside": f"{others} {'is' if len(waiting) == 1 else 'are all'} in {what}, which does not end"
                  + (": a rank without a dump, or the network" if unknown else ": the network, or a GPU"),
    }[kind] + far  # fmt: skip
    shapes = [one[:16] for one in call.input_sizes[:_MOST_SIZES]] if call is not None else []
    dtype = clean(call.input_dtypes[0], 20) if call is not None and call.input_dtypes else ""
    return FlightStop(kind, group, name, number, size, shapes, dtype, place, waiting, missing, unknown, instead, waited_s, words)


def _ranks(numbers: Sequence[int]) -> str:
    few = ranges(sorted(numbers)[:256])
    return f"rank {few}" if len(numbers) == 1 else f"ranks {few}{' …' if len(numbers) > 256 else ''}"


def _called(call: Call) -> str:
    number = call.p2p_seq_id if call.is_p2p else call.collective_seq_id
    of = f" of {call.group}" if call.group else ""
    return f"{call.name} {number}{of}{f', {call.place}' if call.place else ''}"


def _of_transfers(dumps: Mapping[int, Dump]) -> Iterator[FlightStop]:
    """Sends and receives whose other side has not come."""
    for rank, dump in dumps.items():
        for call in dump.transfers():
            if (side := _side(call)) is None:
                continue
            members = dump.members(_key(call))
            own, peer = (members[at] if at < len(members) else at for at in side[2:])
            other = dumps.get(peer)
            if own != rank or (other is not None and _other(side) in other.open_sides):
                continue
            waited_s = _waited_s(call, dump)
            if waited_s is None or waited_s >= FRESH_S:
                missing, unknown = ([peer], []) if other is not None else ([], [peer])
                last = next(reversed(other.calls), None) if other is not None else None
                instead = _called(last) if last is not None else ""
                kind = "missing" if missing else "inside"
                yield _worded(kind, call, call.p2p_seq_id, [rank], missing, unknown, instead, waited_s, _key(call))
                break  # later ones of this rank wait behind it


def _side(call: Call) -> _Side | None:
    """What a transfer is to its rank; None for a call of another kind."""
    found = _PEER.search(call.name)
    return None if found is None else (_key(call), found[1], int(found[2]), int(found[3]))


def _other(side: _Side) -> _Side:
    """The receive of a send, and the other way round, of the same two ranks of a group."""
    group, verb, own, peer = side
    return group, "recv" if verb == "send" else "send", peer, own
