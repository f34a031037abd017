"""link-errors: links of a GPU that are trained again, or send again what arrived wrong: NVLink by link, and PCIe.

The driver corrects such errors, and what they cost is not measured: they take no GPU time here, and are never the verdict. They are told
because a link that fails has mostly been trained again for days before (`policy.LINK_RECOVERIES`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct, field

from gputop.diagnosis.graph.job import WalkedFacts
from gputop.diagnosis.incidents import Incidents, begun
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import LINK_ERRORS, SEVERITIES, Evidence, Fix, Incident, Victim
from gputop.model.board import Board, GpuBoard
from gputop.model.gpu import NvLinkCounts
from gputop.system.text import clean

_PCIE = -1  # in place of an NVLink's number
_Counter = tuple[int, str]  # an NVLink's number or `_PCIE`, and the counter's name


class _Errors(NamedTuple):
    """A counter of a link, and what its growth means."""

    least: float  # growth a minute from which it is an incident
    severity: str
    words: str  # link (not of PCIe), GPU, growth a minute


_KINDS = {
    "failed_recoveries": _Errors(policy.LINK_RECOVERIES, "medium", "NVLink {} of GPU {} fails to be trained again {:.1f} times a minute"),
    "recoveries": _Errors(policy.LINK_RECOVERIES, "medium", "NVLink {} of GPU {} is trained again {:.1f} times a minute"),
    "crc_errors": _Errors(policy.LINK_CRC_ERRORS, "medium", "NVLink {} of GPU {} gets {:.0f} packets a minute with a wrong checksum"),
    "replays": _Errors(policy.LINK_REPLAYS, "low", "NVLink {} of GPU {} sends {:.0f} packets a minute again"),
    "pcie_replays": _Errors(policy.LINK_REPLAYS, "low", "The PCIe link of GPU {} sends {:.0f} packets a minute again"),
}
"""Name of a counter of `NvLinkCounts`, or of the GPU's PCIe link -> what it means, the worst first."""


class _Grown(NamedTuple):
    """What the counters have grown by from one reading to the next; those that rest are left out."""

    since_ns: int
    t_ns: int
    counts: dict[_Counter, int]


class _Watched(Struct):
    """The counters of one GPU."""

    read_ns: int = 0
    counts: dict[_Counter, int] = field(default_factory=dict)
    grown: deque[_Grown] = field(default_factory=deque)  # of the last `policy.LINKS_NS`
    incident: Incident | None = None
    last_ns: int = 0  # when a counter was last found to have grown

    def take(self, gpu: GpuBoard, t_ns: int) -> None:
        """Take in the readings, if there are newer ones. A counter that fell has begun again."""
        read_ns = max(gpu.read_ns.get("nvlinks", 0), gpu.read_ns.get("pcie_replays", 0))
        if read_ns > self.read_ns:
            counts = dict(_counts(gpu))
            steps = {counter: count - self.counts.get(counter, count) for counter, count in counts.items()}
            grown = {counter: step for counter, step in steps.items() if step > 0}
            if self.counts:
                self.grown.append(_Grown(self.read_ns, read_ns, grown))
                self.last_ns = read_ns if grown else self.last_ns
            self.read_ns, self.counts = read_ns, counts
        while self.grown and self.grown[0].t_ns <= t_ns - policy.LINKS_NS:
            self.grown.popleft()

    def per_minute(self) -> dict[_Counter, float]:
        """Growth a minute of each counter that grew, the worst first."""
        if not self.grown:
            return {}
        sums: dict[_Counter, int] = {}
        for one in self.grown:
            for counter, step in one.counts.items():
                sums[counter] = sums.get(counter, 0) + step
        minutes = max(1.0, (self.grown[-1].t_ns - self.grown[0].since_ns) / 60e9)  # one error in 10 s is none in each
        order = [*_KINDS]
        return {one: sums[one] / minutes for one in sorted(sums, key=lambda one: (order.index(one[1]), -sums[one], one[0]))}


class BadLinks(Struct):
    """One incident for each GPU with links that err, which names the worst, until none of its counters has grown for a minute."""

    watched: dict[int, _Watched] = field(default_factory=dict)  # by GPU

    def begin(self) -> None:
        """Go on watching; links that still err get new incidents."""
        for one in self.watched.values():
            one.incident = None

    def note(self, board: Board, facts: WalkedFacts, incidents: Incidents) -> None:
        """Take in the board: incidents begin, change and end."""
        for index in self.watched.keys() - board.gpus.keys():
            _end(self.watched.pop(index))
        for index, gpu in board.gpus.items():
            one = self.watched.setdefault(index, _Watched())
            one.take(gpu, board.t_ns)
            rates = one.per_minute()
            loud = {counter: rate for counter, rate in rates.items() if rate >= _KINDS[counter[1]].least}
            if not rates:
                _end(one)
            elif loud:
                if one.incident is None:
                    since_ns = next(part.since_ns for part in one.grown if part.counts)
                    one.incident = begun(LINK_ERRORS, since_ns, severity="info", gpu=index)
                    incidents.append(one.incident)
                _tell(one.incident, loud, one.counts, _users(index, facts))


def _counts(gpu: GpuBoard) -> Iterator[tuple[_Counter, int]]:
    """The counters that the driver has for the GPU."""
    links = gpu.values.get("nvlinks")
    for link in links if isinstance(links, list) else ():
        if isinstance(link, NvLinkCounts):
            for name in _KINDS:
                if (count := getattr(link, name, None)) is not None:
                    yield (link.link, name), count
    replays = gpu.values.get("pcie_replays")
    if isinstance(replays, int):
        yield (_PCIE, "pcie_replays"), replays


def _users(index: int, facts: WalkedFacts) -> list[Victim]:
    """The trainers that use the GPU."""
    jobs = [job for job in facts.jobs if index in {gpu.index for gpu in job.gpus}]
    return [Victim(job.trainer.pid, job.trainer.role.kind, clean(job.trainer.role.label)) for job in jobs]


def _tell(incident: Incident, loud: dict[_Counter, float], counts: dict[_Counter, int], users: list[Victim]) -> None:
    """Bring the incident's words and numbers up to date. It stays as severe as it was at worst; who used the GPU meanwhile stays named."""
    gpu, (worst, rate) = incident.gpu, next(iter(loud.items()))
    link, name = worst
    incident.severity = max(incident.severity, *(_KINDS[one].severity for _, one in loud), key=SEVERITIES.index)
    incident.headline = filled(_KINDS[name].words, *(() if link == _PCIE else (link,)), gpu, rate)
    others = sorted({other for other, _ in loud} - {link, _PCIE})
    incident.detail = filled("{} since the driver was loaded", counts[worst])
    if others:
        incident.detail += filled("; NVLinks with errors beside it: {:cpus}", ",".join(map(str, others)))
    incident.evidence = list(_evidence(loud, link))
    incident.fixes = list(_fixes(int(gpu or 0), link, name))
    known = {victim.pid for victim in incident.victims}
    incident.victims = [*incident.victims, *(user for user in users if user.pid not in known)]


def _evidence(loud: dict[_Counter, float], link: int) -> Iterator[Evidence]:
    def told(name: str) -> float | None:
        rate = loud.get((_PCIE if name == "pcie_replays" else link, name))
        return None if rate is None else round(rate, 1)

    every = (
        Evidence("failed_recoveries_per_min", told("failed_recoveries"), "/min", "times that training the NVLink again failed"),
        Evidence("recoveries_per_min", told("recoveries"), "/min", "times that the NVLink was trained again"),
        Evidence("crc_errors_per_min", told("crc_errors"), "/min", "packets with a wrong checksum on the NVLink"),
        Evidence("replays_per_min", told("replays"), "/min", "packets that the NVLink sent again"),
        Evidence("pcie_replays_per_min", told("pcie_replays"), "/min", "packets that the PCIe link sent again"),
    )
    yield from (one for one in every if one.value is not None)


def _fixes(gpu: int, link: int, name: str) -> Iterator[Fix]:
    if name == "pcie_replays":
        yield Fix("When no job uses it, seat the card again, in another slot, without a riser; replace the riser or cable")
        yield Fix("See whether the system reports errors of the bus", "sudo dmesg | grep -iE 'aer|pcieport' | tail -20", look=True)
        return
    if _KINDS[name].severity == "medium":
        yield Fix("Drain the node when its jobs have ended, and have link and switch tested: links that are trained again fail days later")
    yield Fix(filled("When no job runs, reset GPU {} with all GPUs on its NVSwitches: NVLink {} is then trained anew", gpu, link))
    yield Fix("See what each of its links has counted", filled("nvidia-smi nvlink -e -i {:d}", gpu), look=True)
    yield Fix("See the reports of driver and switches", "sudo dmesg | grep -iE 'nvlink|sxid|xid' | tail -20", look=True)


def _end(one: _Watched) -> None:
    if one.incident is not None:
        one.incident.end_ns = one.last_ns
    one.incident = None
