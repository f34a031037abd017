"""Trainings of sixteen ranks, one of which is late, put together from labelled recordings: a stream for each node.

The late rank's node plays a job that was recorded alone (few workers, a hog, a quota, a disk, a slow GPU). The other nodes play a rank of
a training whose GPU spun in a collective from the onset on. Where the wire is slow, one plays a rank behind it, and the others the rank at
its other end, as if their own links were fast. The ranks' numbers, the rendezvous and the addresses of a ring are written anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputop.model.frame import Frame, Header, ProcInfo, ProcSample
from gputop.model.roles import program_name
from tests.corpus import runs
from tests.corpus.accuracy import DATA
from tests.corpus.split import LEARN, half_of
from tests.fleet.splitting import Item, by_rank

SIZE = 16
WIRE = "slow wire"
KINDS = {
    "few workers": "too-few-workers", "hog": "cpu-contention", "quota": "cgroup-throttle", "disk": "disk-io", "slow GPU": "gpu-throttle",
    WIRE: "slow-wire",
}  # fmt: skip
"""What keeps the late rank -> the label of its recordings. Behind a slow wire it is the rank whose link is slow."""
VICTIMS = (("straggler-gpu", 0), ("straggler-loader", 0), ("straggler-gc", 0), ("straggler-gc", 1))
"""(Recording, rank that waits in it)"""
EACH = 4  # runs of a kind
HEALTHY, HEALTHY_RUNS = "healthy", 10
TRAINER = "train.py"


class Part(Struct, frozen=True):
    """A node's stream."""

    items: list[Item]
    onset_s: float  # from its first frame on

    @property
    def unix_s(self) -> float:
        """The wall clock at its onset, as it was recorded."""
        header, first = self.items[:2]
        assert isinstance(header, Header)
        return header.unix_ns_of(first.t_ns) / 1e9 + self.onset_s

    def on_a_good_wire(self) -> Part:
        """It with a twentieth of the time in which data were on its wire."""
        return replace(self, items=[_rewired(item, lambda one: {"wire_busy_ns": (one.wire_busy_ns or 0) // 20}) for item in self.items])

    def as_rank(self, number: int) -> Part:
        """It on a node on which the trainer is a rank of a training over `SIZE` nodes."""
        return replace(self, items=as_rank(self.items, number, host_of(number)))


class Case(Struct, frozen=True):
    """A run: the late rank and the recording that it plays; or a training in which all play a healthy one."""

    kind: str  # a word of `KINDS`, or `HEALTHY`
    workload: str
    mode: str  # of `tests.corpus.runs.MODES`
    late: int | None = None  # rank
    victim: tuple[str, int] = VICTIMS[0]

    @property
    def cause(self) -> str:
        """That should be told."""
        return KINDS[self.kind]

    def parts(self) -> list[Part]:
        """The streams of its nodes, by rank."""
        if self.kind == WIRE:
            own, waits = part_of(self.workload, self.mode, 0), part_of(self.workload, self.mode, 1).on_a_good_wire()
            return [(own if number == self.late else waits).as_rank(number) for number in range(SIZE)]
        own, name = part_of(self.workload, self.mode), self.victim
        waits = own if self.late is None else part_of(name[0], self.mode, name[1])
        return [(own if number == self.late else waits).as_rank(number) for number in range(SIZE)]


def cases() -> list[Case]:
    """`EACH` runs of each kind, with recordings of the half `learn` of the corpus in the order of their names; where these are fewer,
    with what the collector saw of them without the probes, too."""
    draw, found = random.Random(4), list[Case]()
    for kind, cause in KINDS.items():
        known = [(name, mode) for mode in runs.MODES for name in _learned() if labelled(name) == cause]
        late = draw.sample(range(SIZE), EACH)
        found += [Case(kind, *known[number], late[number], VICTIMS[number]) for number in range(EACH)]
    return found


def healthy_cases() -> list[Case]:
    """`HEALTHY_RUNS` trainings of which no rank is late."""
    names = [name for name in _learned() if name.startswith("healthy-")]
    return [Case(HEALTHY, name, "eBPF") for name in names[:HEALTHY_RUNS]]


def host_of(number: int) -> str:
    """The node of a rank."""
    return f"node{number + 1:02}"


@cache
def _learned() -> list[str]:
    return [path.stem for path in sorted(DATA.glob("*.xz")) if half_of(path.stem) == LEARN]


@cache
def labelled(name: str) -> str:
    """The cause in a recording's label."""
    return runs.load(DATA / f"{name}.xz").cause


def part_of(name: str, mode: str, rank: int | None = None) -> Part:
    """A recording's stream, or a rank's of it."""
    run = runs.load(DATA / f"{name}.xz")
    items: list[Item] = list(run.items(mode)) if rank is None else list(_rank_of(name, mode, rank))
    first = next(item for item in items if isinstance(item, Frame))
    onset_ns = run.onset_ns or first.t_ns
    return Part(items, max(0.0, (onset_ns - first.t_ns) / 1e9))


@cache
def _rank_of(name: str, mode: str, rank: int) -> Sequence[Item]:
    items = runs.load(DATA / f"{name}.xz").items(mode)
    ranks = {info.pid: info.env.get("RANK") for item in items if isinstance(item, Frame) for info in item.infos}
    return next(found for pid, found in by_rank(items).items() if ranks.get(pid) == str(rank))


def as_rank(items: Sequence[Item], number: int, host: str) -> list[Item]:
    """The stream of a node on which the trainer is a rank of a training over `SIZE` nodes."""
    own = {"RANK": str(number), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    own |= {"MASTER_ADDR": host_of(0), "MASTER_PORT": "29500"}
    ends = dict(zip(("wire_own", "wire_peer"), ends_of(number), strict=True)) | {"wire_interface": "eth0"}
    return [
        replace(item, host=host, boot_id=host) if isinstance(item, Header)
        else replace(_rewired(item, lambda _: ends), infos=[_renamed(info, own) for info in item.infos])
        for item in items
    ]  # fmt: skip


def ends_of(number: int) -> tuple[str, str]:
    """Both ends of the connection by which a rank sends to the next one round the ring."""
    return f"10.0.0.{number + 1}:40000", f"10.0.0.{(number + 1) % SIZE + 1}:29400"


def _rewired(item: Item, change: Callable[[ProcSample], dict[str, Any]]) -> Item:
    """The item with other fields of those processes whose connections were read."""
    if isinstance(item, Header):
        return item
    return replace(item, procs=[one if one.wire_busy_ns is None else replace(one, **change(one)) for one in item.procs])


def _renamed(info: ProcInfo, own: dict[str, str]) -> ProcInfo:
    return replace(info, env={**info.env, **own}) if program_name(info) == TRAINER else info
