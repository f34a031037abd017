"""Where the threads of chosen processes wait: their kernel stacks summed over some seconds, by eBPF, on demand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gputop.sources import Unavailable
from gputop.sources.ebpf import access
from gputop.sources.ebpf import loader
from gputop.sources.ebpf.handover import find_python
from gputop.sources.ebpf.source import PROBES
from gputop.stacks import offcpu_loader
from gputop.stacks.folded import Weighted
from gputop.stacks.kernel import in_kernel
from gputop.stacks.kernel import look
from gputop.stacks.kernel import thread_list

DURATION_S = 5.0
_LOAD_S = 20.0
_SCHEDULING = ("bpf_", "__bpf_", "__traceiter_", "__schedule", "schedule", "preempt_schedule", "io_schedule", "__cond_resched")


@dataclass(frozen=True, slots=True)
class OffCpuStack:
    """One thread's waits at one place in the kernel, frames innermost first."""

    pid: int
    tid: int
    why: str
    """``sleeping``, ``uninterruptible`` or ``preempted``."""
    ns: int
    """From leaving the CPU to running again."""
    times: int
    """Waits that ended; 0 for one that lasts still."""
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OffCpu:
    """What ``seconds`` of watching gave, longest first; ``lost`` waits found no room."""

    stacks: tuple[OffCpuStack, ...]
    seconds: float
    lost: int


class _Answer(msgspec.Struct):
    rows: list[tuple[int, int, str, int, int, list[str]]] = []
    seconds: float = 0.0
    lost: int = 0
    error: str = ""
    remedy: str = ""


def watch(pids: Sequence[int], duration_s: float = DURATION_S, root: str = "/") -> OffCpu:
    """Watch ``pids`` for ``duration_s``. Raises Unavailable.

    A thread that was not seen to run at all and sleeps at the end slept throughout: its stack is /proc's.
    """
    access.check(root, sudo=False)
    answer = _run(pids, duration_s, root)
    waits: dict[tuple[int, int, str, tuple[str, ...]], tuple[int, int]] = {}
    for pid, tid, why, ns, times, names in answer.rows:
        place = pid, tid, why, _waiting_in(names)
        before = waits.get(place, (0, 0))
        waits[place] = before[0] + ns, before[1] + times
    seen = {tid for _, tid, _, _ in waits}
    found = [OffCpuStack(pid, tid, why, ns, times, frames) for (pid, tid, why, frames), (ns, times) in waits.items()]
    found += [one for pid in pids for one in _slept_throughout(pid, seen, round(answer.seconds * 1e9), root)]
    return OffCpu(tuple(sorted(found, key=lambda one: -one.ns)), answer.seconds, answer.lost)


def _waiting_in(names: Sequence[str]) -> tuple[str, ...]:
    """Without the probe itself and the scheduler, which are the same in all."""
    inner = 0
    while inner < len(names) and names[inner].startswith(_SCHEDULING):
        inner += 1
    return in_kernel(names[inner:])


def _slept_throughout(pid: int, seen: set[int], window_ns: int, root: str) -> list[OffCpuStack]:
    found = []
    for tid in sorted(thread_list(pid, root)):
        view = look(pid, tid, root)
        if view is not None and tid not in seen and view.state in "SD":
            why = "uninterruptible" if view.state == "D" else "sleeping"
            found.append(OffCpuStack(pid, tid, why, window_ns, 0, _waiting_in(view.frames)))
    return found


def _run(pids: Sequence[int], duration_s: float, root: str) -> _Answer:
    import subprocess

    request = {
        "probes": PROBES, "ebpf": os.path.dirname(os.path.abspath(loader.__file__)), "btf": os.path.join(root, "sys/kernel/btf/vmlinux"),
        "pids": list(pids), "seconds": duration_s,
    }  # fmt: skip
    command = [find_python(), "-I", os.path.abspath(offcpu_loader.__file__), json.dumps(request)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=duration_s + _LOAD_S, check=False)
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise Unavailable(f"the off-CPU probe failed: {error}", "gputop doctor") from None
    if answer.error:
        remedy = access.install_bcc(root) if answer.remedy == loader.INSTALL_BCC else answer.remedy
        raise Unavailable(answer.error, remedy or "gputop doctor")
    return answer


def weigh(stacks: Iterable[OffCpuStack]) -> list[Weighted]:
    """For folded lines and speedscope: weights in nanoseconds."""
    return [((f"{one.why} {one.tid}", *reversed(one.frames)), one.ns) for one in stacks]
