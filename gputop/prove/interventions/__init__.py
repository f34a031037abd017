"""Interventions, which can be tried against a cause. Each file has an `INTERVENTION`; its docstring has four parts: Change (and the causes
it serves), May be kept, Right needed, Undo."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from gputop.prove.change import Case, Plan, Refusal
from gputop.prove.groups import ReachUnknown
from gputop.prove.permission import READONLY
from gputop.prove.processes import why_no_pids
from gputop.prove.scene import Scene

INTERVENTIONS = (
    "cpu_weight", "idle_priority", "cpu_quota", "memory_limit", "io_limit", "io_priority", "io_throttle", "cpu_mask", "resume", "stop",
    "one_cpu", "near_gpu",
)  # fmt: skip
"""Modules of this folder, in the order in which they are tried."""


class Intervention(Struct, frozen=True):
    """An intervention that can be tried."""

    name: str
    causes: tuple[str, ...]  # words of `gputop.findings.verdict.CAUSES`
    make: Callable[[Case, Scene], Plan | Refusal | None]  # None: not for this case, and no reason worth a line


NONE = {
    "none": "nothing is wrong that could be switched off",
    "worker-oversubscription": "how many workers and threads there are is decided when the loader starts: gputop loader measures that",
    "too-few-workers": "how many workers there are is decided when the loader starts: gputop loader measures that",
    "slow-transform": "the transforms cannot be left out while they run: see what_if in gputop explain",
    "gil-contention": "the holder of the GIL cannot be changed from outside: see what_if in gputop explain",
    "lock-contention": "to take a lock from its holder is not harmless: gputop stacks shows the holder",
    "output-blocked": "to read a pipe in its reader's place would take what it holds: gputop stacks shows the reader",
    "network-io": "the other end of the network is not gputop's to change",
    "comm-fallback": "a library chooses its way once, when the ranks start: see the fixes in gputop explain",
    "slow-wire": "the network between ranks is not gputop's to change: see the fixes in gputop explain",
    "frontend-bound": "how many processes take requests is decided when the server starts: see the fixes in gputop explain",
    "scheduler-bound": "what an engine does between two passes is its own: see the fixes in gputop explain",
    "kv-full": "an engine takes its memory when it starts: see the fixes in gputop explain",
    "model-load": "a start comes once: see the fixes in gputop explain",
    "worker-respawn": "whether loaders stay is decided when they start: see the fixes in gputop explain",
    "main-thread-preprocessing": "work of the trainer itself cannot be left out while it runs",
    "host-optimizer": "where the optimizer keeps its state is decided by the program: see the fixes in gputop explain",
    "h2d-transfer": "how it copies is decided by the program: from page-locked memory, overlapped with computing",
    "pcie-degraded": "a link is trained when the machine starts, or by a reset, which ends all work: see the fixes in gputop explain",
    "sync-storm": "the program waits for the GPU by itself: see what_if in gputop explain",
    "small-kernels": "what the program launches is its own: CUDA graphs, fused kernels, more at once",
    "gpu-throttle": "power and clock limits are not touched: see them with `nvidia-smi -q -d PERFORMANCE,POWER,CLOCK`, "
    "raise them with `sudo nvidia-smi -pl WATTS`, `sudo nvidia-smi -rgc`",
    "undersized-work": "the GPU is bigger than the job: no experiment makes the job larger",
    "unexplained": "no process is suspected, so there is none to try",
    "gpu-lost": "no experiment brings a GPU back: see the fixes in gputop explain",
    "link-errors": "no experiment mends a link: see the fixes in gputop explain",
    "slower-than-usual": "what it is due to is not known: undo what changed then, one at a time",
    "host-memory-growth": "memory that grows is given back by no experiment",
    "gpu-memory-growth": "memory that grows is given back by no experiment",
}
"""Cause -> why there is no harmless experiment for it, and what to do instead."""


@lru_cache(maxsize=1)
def interventions() -> tuple[Intervention, ...]:
    """All interventions, in the order in which they are tried."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in INTERVENTIONS)
    return tuple(module.INTERVENTION for module in modules)


def plan(case: Case, *, allow_stop: bool = False, allow_others: bool = True, readonly: bool = False) -> Plan | Refusal:
    """Plan for this case, or the reason why there is nothing to try.

    ``allow_others``: as root, processes of other users may be in it; `Plan.others` names them, and the user must be asked.
    """
    if readonly:
        return Refusal(READONLY)
    if problem := why_no_pids():
        return Refusal(problem)
    try:
        scene = Scene(case, allow_stop, allow_others)
    except OSError as error:
        return Refusal(f"the processes of this machine could not be looked at: {error.strerror or error}")
    told = None
    for one in interventions():
        if case.cause in one.causes:
            try:
                made = one.make(case, scene)
            except ReachUnknown as error:
                made = Refusal(f"{case.cause}: {error}")
            except OSError as error:  # a process or group that has ended, or no more open files
                made = Refusal(f"{case.cause}: what is there could not be looked at ({error.strerror or error}): try again")
            if isinstance(made, Plan):
                return made
            told = told or made
    return told or Refusal(f"{case.cause}: {NONE.get(case.cause, 'there is no harmless experiment for it')}")
