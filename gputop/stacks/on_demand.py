"""eBPF probes that are loaded on demand for some seconds, by a helper under the system's Python, which has bcc; and off-CPU stacks.

`watch_off_cpu` sums where threads of chosen processes wait in the kernel (probes/offcpu.c).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from gputop.sources.ebpf import helper, loader
from gputop.sources.ebpf.helper import find_python, telling_line
from gputop.sources.ebpf.source import PROBES
from gputop.stacks import on_demand_loader
from gputop.stacks.frames import Weighted
from gputop.stacks.kernel import in_kernel, thread_list, view_thread
from gputop.stacks.permission import SUDO
from gputop.system.errors import Unavailable
from gputop.system.privilege import capabilities, in_container
from gputop.system.text import clean

_LOAD_S = 20.0  # s that the helper may take beyond the measurement, to compile and load


class HelperAnswer(msgspec.Struct):
    """The helper's answer; each probe's subclass adds its rows."""

    seconds: float = 0.0
    lost: int = 0
    error: str = ""
    remedy: str = ""


AnswerT = TypeVar("AnswerT", bound=HelperAnswer)


def run_probe(
    probe: str, wanted: Mapping[str, object], duration_s: float, *, form: type[AnswerT], as_root: str, root: str = "/",
    files: tuple[int, ...] = (),
) -> AnswerT:  # fmt: skip
    """Run a probe for ``duration_s``; ``wanted`` and the rows are on_demand_loader's. Raises Unavailable.

    ``form``: type of the answer; ``as_root``: arguments of the command that the remedy suggests after `SUDO`; ``files``: descriptors that
    the helper inherits.
    """
    helper.check(root, sudo=True)
    if not helper.may_load(capabilities(root)):
        remedy = helper.privilege(root) if os.geteuid() == 0 or in_container(root) else f"`{SUDO} {as_root}`"
        raise Unavailable("needs root, or CAP_BPF and CAP_PERFMON", remedy)
    request = {
        "probe": probe, "probes": PROBES, "ebpf": os.path.dirname(os.path.abspath(loader.__file__)),
        "btf": os.path.join(root, "sys/kernel/btf/vmlinux"), "seconds": duration_s, **wanted,
    }  # fmt: skip
    command = [find_python(), "-I", os.path.abspath(on_demand_loader.__file__), json.dumps(request)]
    answer, printed = _answer(probe, command, duration_s + _LOAD_S, form, files)
    if answer.error:
        remedy = helper.install_bcc(root) if answer.remedy == loader.INSTALL_BCC else answer.remedy
        raise Unavailable(answer.error if remedy or not printed else f"{answer.error} ({printed})", remedy or "gputop doctor")
    return answer


def _answer(probe: str, command: list[str], wait_s: float, form: type[AnswerT], files: tuple[int, ...]) -> tuple[AnswerT, str]:
    """(the helper's answer, the most useful line that it printed on standard error)."""
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, timeout=wait_s, check=False, pass_fds=files)
        printed = clean(telling_line(done.stderr))
        return msgspec.json.decode(done.stdout, type=form), printed
    except subprocess.TimeoutExpired:
        reason = f"it did not finish within {wait_s:.0f} s"
    except OSError as error:
        reason = f"{command[0]}: {error.strerror}"
    except msgspec.DecodeError:
        reason = printed or f"its helper ended with status {done.returncode}"
    raise Unavailable(f"the {probe} probe failed: {reason}", "gputop doctor")


OFF_CPU_S = 5.0  # s, default length of `watch_off_cpu`
# Prefixes of the probe's own and the scheduler's functions: the same at the top of each stack, and left out.
_SCHEDULING = ("bpf_", "__bpf_", "__traceiter_", "__schedule", "schedule", "preempt_schedule", "io_schedule", "__cond_resched")


class OffCpuStack(Struct, frozen=True):
    """One thread's waits with the same kernel stack, frames innermost first."""

    pid: int
    tid: int
    why: str  # ``sleeping``, ``uninterruptible`` or ``preempted``
    ns: int  # sum of the times from leaving the CPU to running again
    times: int  # waits that ended; 0: one that still lasts
    frames: tuple[str, ...]


class OffCpu(Struct, frozen=True):
    """The stacks of ``seconds`` of watching, longest first; ``lost`` waits found no room in the probe's maps."""

    stacks: tuple[OffCpuStack, ...]
    seconds: float
    lost: int


class _OffCpuAnswer(HelperAnswer):
    rows: list[tuple[int, int, str, int, int, list[str]]] = []


def watch_off_cpu(pids: Sequence[int], duration_s: float = OFF_CPU_S, root: str = "/") -> OffCpu:
    """Off-CPU stacks of ``pids`` over ``duration_s``. Raises Unavailable.

    A thread that never ran and sleeps at the end slept all the time: its stack comes from /proc.
    """
    as_root = f"{' '.join(map(str, pids))} --off-cpu"
    answer = run_probe("offcpu", {"pids": list(pids)}, duration_s, form=_OffCpuAnswer, as_root=as_root, root=root)
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
    """The kernel functions of a wait, without the probe's and the scheduler's."""
    inner = 0
    while inner < len(names) and names[inner].startswith(_SCHEDULING):
        inner += 1
    return in_kernel(names[inner:])


def _slept_throughout(pid: int, seen: set[int], window_ns: int, root: str) -> list[OffCpuStack]:
    found = []
    for tid in sorted(thread_list(pid, root)):
        view = view_thread(pid, tid, root)
        if view is not None and tid not in seen and view.state in "SD":
            why = "uninterruptible" if view.state == "D" else "sleeping"
            found.append(OffCpuStack(pid, tid, why, window_ns, 0, _waiting_in(view.frames)))
    return found


def weigh_off_cpu(stacks: Iterable[OffCpuStack]) -> list[Weighted]:
    """The stacks with their ns as weights, for folded lines and speedscope."""
    return [((f"{one.why} {one.tid}", *reversed(one.frames)), one.ns) for one in stacks]
