"""Wires between the ranks of a job over many nodes: which link has data on it while the ranks wait. Pure.

A rank's busiest connection (`gputop.sources.procfs.wire`) has two ends, on two nodes. They are paired by addresses and ports where both
nodes name the same connection, else by the address alone, if no two nodes have that: networks of containers repeat theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from gputop.findings import policy
from gputop.fleet.summary import RankWire

NAMED = 3  # links that are listed one by one


class WireEnd(Struct, frozen=True):
    """A rank at one end of a link."""

    host: str
    rank: int
    wire: RankWire

    @property
    def place(self) -> str:
        """``node03 (eth0)``."""
        return f"{self.host} ({self.wire.interface})" if self.wire.interface else self.host


class RankLink(Struct, frozen=True):
    """A connection between two ranks, from the one that sends."""

    sender: WireEnd
    receiver: WireEnd | None  # None: its node is not seen, or its address is no one node's

    @property
    def words(self) -> str:
        """``node03 (eth0) → node04 (eth0)``."""
        if self.receiver is not None:
            return f"{self.sender.place} → {self.receiver.place}"
        return f"{self.sender.place} → {self.sender.wire.peer or 'an unknown address'}"


def find_links(ends: Sequence[WireEnd]) -> list[RankLink]:
    """The busiest connection of each rank, with its other end where that is seen; the busiest link first."""
    by_ends = {(end.wire.own, end.wire.peer): end for end in ends}
    hosts: dict[str, set[str]] = {}
    for end in ends:
        hosts.setdefault(_address(end.wire.own), set()).add(end.host)
    by_address = {_address(end.wire.own): end for end in ends if len(hosts[_address(end.wire.own)]) == 1}
    links = list[RankLink]()
    for end in ends:
        peer = end.wire.peer  # empty: a node's gputop, or its recording, has no addresses
        receiver = (by_ends.get((peer, end.wire.own)) or by_address.get(_address(peer))) if peer else None
        links.append(RankLink(end, receiver if receiver is not end else None))
    return sorted(links, key=lambda link: (-link.sender.wire.busy, link.sender.rank))


def slow_of(links: Sequence[RankLink]) -> list[RankLink]:
    """Links that are about as busy as the busiest one: the ranks of all others wait for these."""
    return [link for link in links if link.sender.wire.busy >= policy.MOST * links[0].sender.wire.busy]


def told(slow: Sequence[RankLink], links: Sequence[RankLink]) -> str:
    """Words for the slow links: one by one, or what they have in common."""
    busiest = slow[0].sender.wire
    rates = f"{100 * busiest.busy:.0f}% of the time, {busiest.sent_bytes_per_s / 1e6:.1f} MB/s{_resent(busiest)}"
    if len(slow) > NAMED and 2 * len(slow) > len(links):
        return f"data are on the wires of {len(slow)} of {len(links)} ranks {rates}"
    shared = _shared(slow) if len(slow) > 1 else ""
    if shared:
        return f"data are on the wires of {shared} {rates}"
    words = ", ".join(link.words for link in slow[:NAMED])
    return f"data are on the wire {words}{' …' * (len(slow) > NAMED)} {rates}"


def _shared(slow: Iterable[RankLink]) -> str:
    """The place that is an end of all these links, if there is one."""
    ends = [{end.place for end in (link.sender, link.receiver) if end is not None} for link in slow]
    counts = Counter(place for places in ends for place in places)
    common = [place for place, count in counts.items() if count == len(ends)]
    return common[0] if len(common) == 1 else ""


def _resent(wire: RankWire) -> str:
    return f", {wire.retrans_per_s:.0f} segments a second sent again" if wire.retrans_per_s >= policy.RESENT_PER_S else ""


def _address(end: str) -> str:
    """``10.0.0.1`` of ``10.0.0.1:29500``."""
    return end.rpartition(":")[0]
