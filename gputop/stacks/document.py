"""The objects that `gputop stacks --json` prints: stacks of one moment, with --duration shares by line, with --off-cpu kernel waits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from msgspec import Struct

from gputop.model.frame import Stack
from gputop.model.roles import Role
from gputop.stacks.capture import StackSet
from gputop.stacks.group import Group, group
from gputop.stacks.nccl import NcclReport
from gputop.stacks.on_demand import OffCpu
from gputop.stacks.sampling import CudaLine, LineShare, MainThread

SCHEMA = 1


class Stacks(Struct, frozen=True):
    """Output of `gputop stacks --json`."""

    schema: int
    unix_s: float
    t_ns: int
    took_ns: int
    native: bool
    paused: list[int]
    stacks: tuple[Stack, ...]
    groups: list[Group]
    nccl: NcclReport | None


class SampledThread(Struct, frozen=True):
    """The main thread of one process, sampled."""

    pid: int
    shares: list[LineShare]  # of the user's code, largest first
    cuda: list[CudaLine]  # CUDA calls by line, longest first
    no_cuda: str | None  # why the CUDA calls were not watched, with the remedy


class SampledLines(Struct, frozen=True):
    """Output of `gputop stacks --duration TIME --json`."""

    schema: int
    lines: list[SampledThread]
    unread: dict[int, str]  # pid -> why it could not be sampled, with the remedy


class OffCpuWaits(Struct, frozen=True):
    """Output of `gputop stacks --off-cpu --json`."""

    schema: int
    off_cpu: OffCpu


def sampled_lines(found: Iterable[MainThread], unread: dict[int, str]) -> SampledLines:
    """The samples' findings, and the reasons why the processes in ``unread`` have none."""
    return SampledLines(SCHEMA, [SampledThread(one.pid, one.shares, one.cuda, one.no_cuda or None) for one in found], unread)


def stacks(taken: StackSet, roles: Mapping[int, Role], nccl: NcclReport | None) -> Stacks:
    """The stacks that were taken just now, grouped, and NCCL's report on their job."""
    unix_s = time.time() - (time.monotonic_ns() - taken.t_ns) / 1e9
    groups = group(taken.stacks, roles)
    return Stacks(SCHEMA, unix_s, taken.t_ns, taken.took_ns, taken.native, sorted(taken.paused), taken.stacks, groups, nccl)
