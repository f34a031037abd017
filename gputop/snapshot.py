"""One moment as a plain object: what `gputop --json` prints. Units are in the names; what was not measured is null."""

from __future__ import annotations

from gputop.board import Board
from gputop.board import GpuBoard
from gputop.diagnosis import ProcState
from gputop.fields import throttle_words
from gputop.frame import Gpu
from gputop.frame import GpuProc
from gputop.frame import MigInstance
from gputop.rates import gpu_bytes_per_s
from gputop.rates import proc_rates
from gputop.roles import Role
from gputop.roles import program_name

SCHEMA = 1
LEAST_CPU_PCT = 1.0
_GPU_FIELDS = tuple(name for name in Gpu.__struct_fields__ if name not in ("index", "t_ns", "missing", "procs", "mig"))
_BYTE_COUNTERS = ("pcie_rx_bytes", "pcie_tx_bytes", "nvlink_rx_bytes", "nvlink_tx_bytes")
_MADE_OF = {"limits": "throttle_mask"} | {f"{name}_per_s": name for name in _BYTE_COUNTERS}
"""What is not read but made -> the field that it is made of, whose reason it shares."""
_TOO_SHORT = "not yet: the look was too short"


def take(
    older: Board, newer: Board, roles: dict[int, Role], states: dict[int, ProcState], only: frozenset[int] | None = None
) -> dict[str, object]:
    """The object; rates are over the time from ``older`` to ``newer``.

    ``only`` limits the processes; otherwise they are trainers, workers, GPU processes and those that take CPU.
    """
    header = newer.header
    on_gpu = _gpu_procs(newer)
    pids = only if only is not None else frozenset(pid for pid in newer.procs if _matters(pid, older, newer, roles, on_gpu))
    return {
        "schema": SCHEMA,
        "unix_s": (newer.t_ns + header.unix_ns - header.t_ns) / 1e9,
        "t_ns": newer.t_ns,
        "host": header.host,
        "sources": {s.name: _source(s.state, s.reason, s.remedy, s.detail) for s in newer.sources.values()},
        "gpus": [_gpu(newer.gpus[i], older.gpus.get(i)) for i in sorted(newer.gpus)],
        "procs": [_proc(pid, older, newer, roles.get(pid), states.get(pid), on_gpu.get(pid, [])) for pid in sorted(pids)],
    }


def _source(state: str, reason: str, remedy: str, detail: dict[str, str]) -> dict[str, object]:
    return {"state": state, "reason": reason or None, "remedy": remedy or None, **detail}


def _gpu_procs(board: Board) -> dict[int, list[tuple[int, GpuProc]]]:
    found: dict[int, list[tuple[int, GpuProc]]] = {}
    for index, gpu in board.gpus.items():
        for proc in gpu.procs:
            found.setdefault(proc.pid, []).append((index, proc))
    return found


def _matters(pid: int, older: Board, newer: Board, roles: dict[int, Role], on_gpu: dict[int, list[tuple[int, GpuProc]]]) -> bool:
    if pid in roles or pid in on_gpu:
        return True
    before = older.procs.get(pid)
    rates = proc_rates(before, newer.procs[pid]) if before else None
    return rates is not None and rates.cpu_pct >= LEAST_CPU_PCT


def _gpu(gpu: GpuBoard, before: GpuBoard | None) -> dict[str, object]:
    newest_ns = max(gpu.read_ns.values(), default=None)
    out: dict[str, object] = {"index": gpu.index, "t_ns": gpu.read_ns.get("util_pct", newest_ns)}
    out |= {name: gpu.values.get(name) for name in _GPU_FIELDS}
    for name in _BYTE_COUNTERS:
        out[f"{name}_per_s"] = gpu_bytes_per_s(before, gpu, name)
    mask = gpu.number("throttle_mask")
    out["limits"] = None if mask is None else throttle_words(int(mask))
    mig = gpu.values.get("mig")
    out["mig"] = [_fields(instance) for instance in mig] if isinstance(mig, list) else None
    out["procs"] = [_fields(proc) for proc in gpu.procs] if "procs" in gpu.values else None
    reasons = gpu.missing | {made: gpu.missing.get(name, _TOO_SHORT) for made, name in _MADE_OF.items()}
    out["missing"] = {name: reason for name, reason in reasons.items() if out.get(name) is None}
    return out


def _fields(item: MigInstance | GpuProc) -> dict[str, object]:
    return {name: getattr(item, name) for name in item.__struct_fields__}


def _proc(
    pid: int, older: Board, newer: Board, role: Role | None, state: ProcState | None, on_gpu: list[tuple[int, GpuProc]]
) -> dict[str, object]:
    info, sample, before = newer.infos.get(pid), newer.procs.get(pid), older.procs.get(pid)
    rates = proc_rates(before, sample) if before and sample else None
    procfs = newer.sources.get("procfs")
    no_delays = procfs.detail.get("blkio_delay_ns") if procfs else None
    return {
        "pid": pid,
        "ppid": info.ppid if info else None,
        "name": program_name(info) if info else None,
        "cmdline": info.cmdline if info else None,
        "user": info.user if info else None,
        "cgroup": info.cgroup if info else None,
        "cpus_allowed": info.cpus_allowed if info else None,
        "role": role.kind if role else "bystander",
        "label": role.label if role else None,
        "rank": role.rank if role else None,
        "trainer_pid": role.trainer_pid if role else None,
        "state": state.state if state else None,
        "starving": state.starving if state else None,
        "state_fractions": state.fractions if state else None,
        "kernel_state": sample.state if sample else None,
        "t_ns": sample.t_ns if sample else None,
        "start_ticks": sample.start_ticks if sample else None,
        "utime_ns": sample.utime_ns if sample else None,
        "stime_ns": sample.stime_ns if sample else None,
        "oncpu_ns": sample.oncpu_ns if sample else None,
        "run_delay_ns": sample.run_delay_ns if sample else None,
        "vol_switches": sample.vol if sample else None,
        "invol_switches": sample.invol if sample else None,
        "rss_bytes": sample.rss_bytes if sample else None,
        "num_threads": sample.num_threads if sample else None,
        "majflt": sample.majflt if sample else None,
        "read_bytes": sample.read_bytes if sample else None,
        "write_bytes": sample.write_bytes if sample else None,
        "cpu_pct": rates.cpu_pct if rates else None,
        "runq_pct": rates.runq_pct if rates else None,
        "switches_per_s": rates.switches_per_s if rates else None,
        "invol_per_s": rates.invol_per_s if rates else None,
        "disk_pct": rates.blkio_pct if rates else None,
        "gpus": [{"gpu": index, **_fields(proc)} for index, proc in on_gpu],
        "missing": {"disk_pct": no_delays} if no_delays else {},
    }
