"""Where the threads of chosen processes wait: their kernel stacks summed over some seconds, by eBPF, on demand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from gputop.stacks import on_demand
from gputop.stacks.folded import Weighted
from gputop.stacks.kernel import in_kernel, look, thread_list

DURATION_S = 5.0
_SCHEDULING = ("bpf_", "__bpf_", "__traceiter_", "__schedule", "schedule", "preempt_schedule", "io_schedule", "__cond_resched")


class OffCpuStack(Struct, frozen=True):
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


class OffCpu(Struct, frozen=True):
    """What ``seconds`` of watching gave, longest first; ``lost`` waits found no room."""

    stacks: tuple[OffCpuStack, ...]
    seconds: float
    lost: int


class _Answer(on_demand.Answer):
    rows: list[tuple[int, int, str, int, int, list[str]]] = []


def watch(pids: Sequence[int], duration_s: float = DURATION_S, root: str = "/") -> OffCpu:
    """Watch ``pids`` for ``duration_s``. Raises Unavailable.

    A thread that was not seen to run at all and sleeps at the end slept throughout: its stack is /proc's.
    """
    as_root = f"{' '.join(map(str, pids))} --off-cpu"
    answer = on_demand.watch("offcpu", {"pids": list(pids)}, duration_s, _Answer, as_root, root)
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


def weigh(stacks: Iterable[OffCpuStack]) -> list[Weighted]:
    """For folded lines and speedscope: weights in nanoseconds."""
    return [((f"{one.why} {one.tid}", *reversed(one.frames)), one.ns) for one in stacks]
