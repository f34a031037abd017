"""How a rank's data move to other ranks, in words for every surface: by which ways, in which collectives."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gputop.model.collective import CollectiveNow

NVLINK, SHM, RDMA, SOCKETS = "nvlink", "shm", "rdma", "sockets"
_WORDS = {NVLINK: "NVLink", SHM: "shared memory", RDMA: "RDMA", SOCKETS: "TCP"}


class Way(Struct, frozen=True):
    """A way by which a rank's data reach other ranks now; `gputop.diagnosis.facts.transport` finds it."""

    kind: str  # `NVLINK`, `SHM`, `RDMA` or `SOCKETS`
    on: str = ""  # what it goes over: ``GPU 0``, ``mlx5_0/1``, ``eth0``
    bytes_per_s: float | None = None  # None: it is not counted


def words(ways: Iterable[Way]) -> str:
    """``RDMA by mlx5_0/1 5,000 MB/s, shared memory``; empty without ways."""
    return ", ".join(map(_one, ways))


def _one(way: Way) -> str:
    by = f" by {way.on}" if way.on else ""
    return f"{_WORDS[way.kind]}{by}" + ("" if way.bytes_per_s is None else f" {way.bytes_per_s / 1e6:,.0f} MB/s")


def of_collective(one: CollectiveNow) -> str:
    """``67.1 MB, 12.3 ms, 48.5 GB/s, 31 % of the time; came last in 90 % of them, awaited for 8.2 ms``; what is not known is left out."""
    found = [] if one.size_bytes is None else [f"{one.size_bytes / 1e6:,.1f} MB"]
    found += [] if one.mean_us is None else [f"{one.mean_us / 1e3:,.1f} ms"]
    found += [] if one.busbw_gb_per_s is None else [f"{one.busbw_gb_per_s:,.1f} GB/s"]
    found += [] if one.time_share is None else [f"{100 * one.time_share:.0f} % of the time"]
    if not one.late_share:
        return ", ".join(found)
    return f"{', '.join(found)}; came last in {100 * one.late_share:.0f} % of them, awaited for {(one.awaited_us or 0.0) / 1e3:,.1f} ms"
