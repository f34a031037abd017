"""The ways on which a rank's data move to other ranks, in words for every surface. `gputop.diagnosis.facts.transport` finds them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

NVLINK, SHM, RDMA, SOCKETS = "nvlink", "shm", "rdma", "sockets"
_WORDS = {NVLINK: "NVLink", SHM: "shared memory", RDMA: "RDMA", SOCKETS: "TCP"}


class Way(Struct, frozen=True):
    """A way by which a rank's data reach other ranks now."""

    kind: str  # `NVLINK`, `SHM`, `RDMA` or `SOCKETS`
    on: str = ""  # what it goes over: ``GPU 0``, ``mlx5_0/1``, ``eth0``
    bytes_per_s: float | None = None  # None: it is not counted


def words(ways: Iterable[Way]) -> str:
    """``RDMA by mlx5_0/1 5,000 MB/s, shared memory``; empty without ways."""
    return ", ".join(map(_one, ways))


def _one(way: Way) -> str:
    by = f" by {way.on}" if way.on else ""
    return f"{_WORDS[way.kind]}{by}" + ("" if way.bytes_per_s is None else f" {way.bytes_per_s / 1e6:,.0f} MB/s")
