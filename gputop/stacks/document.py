"""The object that `gputop stacks --json` prints."""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec import Struct

from gputop.model.frame import Stack
from gputop.model.roles import Role
from gputop.stacks.capture import StackSet
from gputop.stacks.group import Group, group
from gputop.stacks.nccl import NcclReport

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


def stacks(taken: StackSet, roles: Mapping[int, Role], nccl: NcclReport | None) -> Stacks:
    """The stacks that were taken just now, grouped, and NCCL's report on their job."""
    unix_s = time.time() - (time.monotonic_ns() - taken.t_ns) / 1e9
    groups = group(taken.stacks, roles)
    return Stacks(SCHEMA, unix_s, taken.t_ns, taken.took_ns, taken.native, sorted(taken.paused), taken.stacks, groups, nccl)
