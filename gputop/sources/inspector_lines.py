"""Lines of the Inspector: what is an operation, sums over a rank's, and which rank came last.

A file's text is its writer's: a line that is none costs itself alone, a value that is none costs that value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputop.model.collective import Collective
from gputop.system.text import clean

MOST_KINDS = 64  # kinds of collectives of a rank
MOST_OPEN = 4096  # collectives of which some ranks' times are still to come
WORD = 64  # characters of a text
MOST_US, MOST_SIZE, MOST_MB_PER_S = 10**11, 1 << 50, 10**9  # a day, a PB, a PB/s: what is larger was not measured
MOST_SUM = 1 << 52  # of a counter: a float of JSON holds it
MOST_RANK = 1 << 24  # of a communicator
MOST_NUMBER = 1 << 62  # of a collective among those of its communicator


class Line(Struct):
    """A line of the Inspector's. Since v4.3 header and metadata stand in a line before those of the operations alone."""

    header: Any = None
    metadata: Any = None
    coll_perf: Any = None
    p2p_perf: Any = None


_DECODER = msgspec.json.Decoder(Line)


class Operation(Struct, frozen=True):
    """One operation of one rank: a collective, a send or a receive."""

    comm: str
    coll: str
    name: str
    rank: int | None
    ranks: int | None
    nodes: int | None
    sn: int | None  # its number among those of its communicator and kind; None: not compared with other ranks'
    size_bytes: int | None
    us: int | None
    busbw_mb_per_s: int | None
    algo: str
    proto: str
    is_mean: bool = False  # the mean of several


class Lines:
    """Reads the lines of one file, in order."""

    def __init__(self, pid: int) -> None:
        self._pid = pid  # in the rank's own namespace
        self._header: dict[str, Any] = {}
        self._is_own = True

    def forget(self) -> None:
        """Lines were left out: which communicator the next ones are of is not known."""
        self._header = {}

    def read(self, lines: Iterable[bytes]) -> Iterator[Operation]:
        """The operations of some lines; what is none is left out."""
        for raw in lines:
            try:
                line = _DECODER.decode(raw)
            except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
                continue
            if isinstance(line.metadata, dict):
                self._is_own = line.metadata.get("pid", self._pid) == self._pid  # else another host's, by the same name
            if isinstance(line.header, dict):
                self._header = line.header
            for prefix, perf in (("coll", line.coll_perf), ("p2p", line.p2p_perf)):
                if isinstance(perf, dict) and self._is_own and (found := self._operation(prefix, perf)) is not None:
                    yield found

    def _operation(self, prefix: str, perf: dict[str, Any]) -> Operation | None:
        head, comm, coll = self._header, _word(self._header.get("id")), _word(perf.get(prefix))
        if not comm or not coll:
            return None
        name = _word(head.get("comm_name"))
        return Operation(
            comm, coll, "" if name == "unknown" else name, rank=_number(head.get("rank"), MOST_RANK),
            ranks=_number(head.get("n_ranks"), MOST_RANK), nodes=_number(head.get("nnodes"), MOST_RANK),
            sn=_number(perf.get("coll_sn"), MOST_NUMBER) if prefix == "coll" else None,
            size_bytes=_number(perf.get(f"{prefix}_msg_size_bytes"), MOST_SIZE), us=_number(perf.get(f"{prefix}_exec_time_us"), MOST_US),
            busbw_mb_per_s=_number(perf.get(f"{prefix}_busbw_gbs"), MOST_MB_PER_S, 1000),
            algo=_known(perf.get("coll_algo")), proto=_known(perf.get("coll_proto")),
        )  # fmt: skip


def _word(value: Any) -> str:
    return clean(value, WORD) if isinstance(value, str) else ""


def _known(value: Any) -> str:
    return "" if value == "unknown" else _word(value)


def _number(value: Any, most: int, factor: int = 1) -> int | None:
    """A count of the file's, in other units; None if it is no number that can have been measured."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most / factor:
        return None
    return round(value * factor)


class Tallies:
    """Sums over the operations of all ranks, and who came last in each collective of which all ranks' times are known."""

    def __init__(self) -> None:
        self.of: dict[int, dict[tuple[str, str], Collective]] = {}  # pid -> (communicator, kind) -> sums
        self._open: dict[tuple[int, str, str, int], dict[int, int]] = {}  # (user, communicator, kind, number) -> pid -> us

    def keep(self, pids: Iterable[int]) -> None:
        """Forget the ranks that are not among these."""
        for pid in self.of.keys() - set(pids):
            del self.of[pid]

    def add(self, pid: int, uid: int, one: Operation, t_ns: int) -> None:
        """Count an operation of a rank."""
        kinds = self.of.setdefault(pid, {})
        known = kinds.get((one.comm, one.coll))
        if known is None and len(kinds) >= MOST_KINDS:
            return
        known = known or Collective(pid, one.comm, one.coll)
        us, bandwidth = one.us, one.busbw_mb_per_s
        if one.is_mean:
            kinds[one.comm, one.coll] = Collective(
                pid, one.comm, one.coll, t_ns, one.name, one.rank, one.ranks, one.nodes, one.algo, one.proto, one.size_bytes, us, bandwidth,
                of_means=True,
            )  # fmt: skip
            return
        kinds[one.comm, one.coll] = replace(
            known, t_ns=t_ns, name=one.name, rank=one.rank, ranks=one.ranks, nodes=one.nodes, algo=one.algo, proto=one.proto,
            size_bytes=one.size_bytes, last_us=us, last_busbw_mb_per_s=bandwidth, times=_sum(known.times, 1 if us is not None else 0),
            bytes=_sum(known.bytes, one.size_bytes or 0), time_us=_sum(known.time_us, us or 0),
            bus_bytes=_sum(known.bus_bytes, (us or 0) * (bandwidth or 0)),  # us times MB/s are bytes
        )  # fmt: skip
        if us is not None and one.sn is not None and (one.ranks or 0) > 1:
            self._meet(pid, (uid, one.comm, one.coll, one.sn), us, one.ranks or 0)

    def _meet(self, pid: int, key: tuple[int, str, str, int], us: int, ranks: int) -> None:
        times = self._open.setdefault(key, {})
        times[pid] = us
        if len(times) == ranks:
            del self._open[key]
            self._compare(key[1:3], times)
        elif len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _compare(self, kind: tuple[str, str], times: dict[int, int]) -> None:
        """The others' times hold their waits for the rank with the shortest."""
        late = min(times, key=times.__getitem__)
        waited_us = round(sum(us - times[late] for us in times.values()) / (len(times) - 1))
        for pid in times:
            if (known := self.of.get(pid, {}).get(kind)) is not None:
                own = {"compared": known.compared + 1}
                if pid == late:
                    own |= {"late": known.late + 1, "awaited_us": _sum(known.awaited_us, waited_us)}
                self.of[pid][kind] = replace(known, **own)


def _sum(before: int, more: int) -> int:
    return min(MOST_SUM, before + more)
