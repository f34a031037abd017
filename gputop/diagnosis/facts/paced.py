"""Sources with a pace of their own: processes that deliver by a clock, as the decoder of a live camera does, or that pass on what others
send unasked, as a subscriber of prices does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.family import INPUT
from gputop.diagnosis.facts.feeders import CONNECTED, command_of
from gputop.findings import policy
from gputop.model.frame import ProcInfo, ProcSample

_APART_NS = 900_000_000  # ns between samples whose counts are compared, at least: the collector reads such a process once a second
_SEEN_NS = 2_900_000_000  # ns of samples from which a pace is known, three readings of a second after the first (guess)
_NO_SOCKETS = "none"  # word of `ProcInfo.sockets`


def is_paced(info: ProcInfo, cores: float, samples: Sequence[ProcSample], infos: Collection[ProcInfo], machine: str) -> bool | None:
    """True if a process delivers at a pace of its own: it sleeps by a timer most of the time, wakes as often in each second, and has
    nobody to wait for. None if it was not seen for long enough to know its pace.

    With a connection its sleeps may be a rate limit or the time before it tries again. Two processes with one command are loaders whose
    number was chosen. One that is ahead of its reader, or computes half of the time, is no slower than its clock alone.
    """
    if info.sockets != _NO_SOCKETS or info.other_ends or cores >= policy.HALF:
        return False
    kind_of = waits.kinds(machine)
    asleep = [one for one in samples if kind_of(one.state, one.syscall, one.syscall_arg, one.wchan) != waits.ONCPU]
    by_timer = [one for one in asleep if waits.is_by_timer(machine, one.state, one.syscall, one.syscall_arg, one.wchan)]
    if len(by_timer) < policy.MOST * len(asleep) or not by_timer or any(waits.is_ahead(one.wchan) for one in asleep):
        return False
    if sum(command_of(one) == command_of(info) for one in infos) >= policy.SEVERAL:
        return False
    return _is_regular(samples)


def is_sent_unasked(info: ProcInfo, cores: float, met: Counter[str], samples: Sequence[ProcSample]) -> bool | None:
    """True if a process passes on what others send it over TCP at their own pace. None if that is not known yet. ``met``: `Member.met`.

    Such a process has sent nothing since its connections were first read, and sleeps until something comes; in each second something does,
    in messages, and in no stream. A sender that has more than the network carries fills its segments, and one that must be asked is asked.
    """
    read = [one for one in samples if one.wire_received_bytes is not None]
    if not read or info.sockets != CONNECTED or cores >= policy.HALF or read[-1].wire_sent_bytes:
        return False
    asleep = met.total() - met[waits.ONCPU]
    if sum(met[kind] for kind in INPUT) < policy.MOST * asleep or any(waits.is_ahead(one.wchan) for one in read):
        return False
    ns, received = read[-1].t_ns - read[0].t_ns, (read[-1].wire_received_bytes or 0) - (read[0].wire_received_bytes or 0)
    arrived_ns = (read[-1].wire_arriving_ns or 0) - (read[0].wire_arriving_ns or 0)
    if arrived_ns > policy.LITTLE * ns or received * 1e9 >= policy.MOVED_BYTES_PER_S * ns:
        return False
    if any((later.wire_received_bytes or 0) <= (one.wire_received_bytes or 0) for one, later in pairwise(_apart(read))):
        return False
    return (True if ns >= _SEEN_NS else None) if received > 0 else False


def _apart(samples: Sequence[ProcSample]) -> list[ProcSample]:
    """Samples of these that are a second apart."""
    apart = list[ProcSample]()
    for one in samples:
        if not apart or one.t_ns - apart[-1].t_ns >= _APART_NS:
            apart.append(one)
    return apart


def _is_regular(samples: Sequence[ProcSample]) -> bool | None:
    """True if its voluntary switches follow one rate, to a fifth or one switch; None for too short a time."""
    apart = _apart(samples)
    counts = [one.vol for one in apart if one.vol is not None]
    if len(apart) <= policy.SEVERAL or apart[-1].t_ns - apart[0].t_ns < _SEEN_NS:
        return None
    if len(counts) < len(apart) or counts[-1] <= counts[0]:
        return False
    per_ns = (counts[-1] - counts[0]) / (apart[-1].t_ns - apart[0].t_ns)
    meant = [(later.t_ns - one.t_ns) * per_ns for one, later in pairwise(apart)]
    told = [later - one for one, later in pairwise(counts)]
    return all(abs(one - mean) <= max(1.0, policy.FIFTH * mean) for one, mean in zip(told, meant, strict=True))
