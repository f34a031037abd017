"""One moment as a plain object, which `gputop --json` prints. Units are in the names.

Values that were not measured are null, with the reason in ``missing`` beside them. Fields that do not apply to a process (a rank, the
state of a bystander, a GPU instance outside MIG, ``identity`` of all but trainers) are left out. ``oncpu_ns``, ``run_delay_ns``,
``runq_pct``, ``vol_switches`` and
``invol_switches`` are the main thread's; ``runq_pct`` is null if other threads were not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from msgspec import UNSET, UnsetType, defstruct, structs

from gputop.diagnosis import Engine
from gputop.findings.explanation import Episode, episode
from gputop.findings.sentence import plain
from gputop.findings.verdict import ProcState
from gputop.model.board import Board, GpuBoard
from gputop.model.fields import limits
from gputop.model.frame import (
    PART,
    SECOND_NS,
    FileSystem,
    Frame,
    Gpu,
    GpuProc,
    Hardware,
    Header,
    MigInstance,
    Nic,
    ProcInfo,
    ProcSample,
)
from gputop.model.identity import identity_of
from gputop.model.rates import ProbedSwitches, ProcRates, counter_per_s, gpu_bytes_per_s, proc_rates
from gputop.model.roles import Role, is_foreign_list, program_name
from gputop.stream.following import Following
from gputop.system.text import clean

SCHEMA = 1
LEAST_CPU_PCT = 1.0  # of a bystander that is listed
_GPU_FIELDS = tuple(name for name in Gpu.__struct_fields__ if name not in ("index", "t_ns", "missing", "procs", "mig"))
_BYTE_COUNTERS = ("pcie_rx_bytes", "pcie_tx_bytes", "nvlink_rx_bytes", "nvlink_tx_bytes")
_BYTE_RATES = {f"{name}_per_s": name for name in _BYTE_COUNTERS}
_MADE_OF = _BYTE_RATES | {"limits": "throttle_mask", "mig": "mig_mode"}
"""Derived field -> the field that it is made of; both have the same reason."""
_UNREAD = "not read yet"
_READ_ONCE = "not yet: a rate takes two readings"
_NONE = {
    "xid": "the driver has reported none since gputop began to watch",
    "held_by": "reported only while procs cannot be read",
}  # fmt: skip
"""Field -> why it is null although the driver answers."""
_FILES = {
    "oncpu_ns": "schedstat", "run_delay_ns": "schedstat", "runq_pct": "schedstat", "vol_switches": "status", "invol_switches": "status",
    "main_switches_per_s": "status", "main_invol_per_s": "status", "read_bytes": "io", "write_bytes": "io", "rank": "environ",
}  # fmt: skip
"""Field of a process -> its file in /proc/PID, which may be unreadable, or not kept by the kernel."""
_NO_SENSE = "the kernel's figure is more than the process's whole life"
_THREADS = "only trainers and workers are read thread by thread"
_UNHELD = {
    "anon_bytes": "only trainers' and workers' is read",
    "shared_bytes": "only workers' is read, now and then, if smaps_rollup is readable",
}
_UNCOUNTED = f"{_THREADS}: only eBPF counts the switches of all threads, over a second"
_UNFOLLOWED = "more of its threads run than are followed: only eBPF counts them all"
_STATED = ("state", "starving", "state_fractions", "state_inferred")
_NO_STATE = "not yet: it was not watched long enough"
_SHARES = ("sm_pct", "mem_pct", "enc_pct", "dec_pct")
"""Fields of a process on a GPU that have one reason, under the first one's name in the GPU's ``missing``."""
_UNTOLD = "the driver has no value for it"
_COUNTERS = (
    ("kernel_state", "state"), ("t_ns", "t_ns"), ("start_ticks", "start_ticks"), ("utime_ns", "utime_ns"), ("stime_ns", "stime_ns"),
    ("oncpu_ns", "oncpu_ns"), ("run_delay_ns", "run_delay_ns"), ("vol_switches", "vol"), ("invol_switches", "invol"),
    ("rss_bytes", "rss_bytes"), ("num_threads", "num_threads"), ("majflt", "majflt"), ("read_bytes", "read_bytes"),
    ("write_bytes", "write_bytes"), ("anon_bytes", "anon_bytes"), ("shared_bytes", "shared_bytes"),
)  # fmt: skip
"""(name in JSON, field of `ProcSample`)"""
_RATES = ("cpu_pct", "runq_pct", "switches_per_s", "invol_per_s", "main_switches_per_s", "main_invol_per_s", "disk_pct")


def keep(older: Board, board: Board, frame: Frame) -> None:
    """Before ``board`` takes in ``frame``, move the readings that it replaces to ``older``.

    So each rate is over a subject's own last two readings, however rarely it is read.
    """
    for pid in frame.gone:
        older.procs.pop(pid, None)
    for sample in frame.procs:
        stood = board.procs.get(sample.pid)
        if stood is not None and stood.t_ns < sample.t_ns:
            older.procs[sample.pid] = stood
    for gpu in frame.gpus:
        if gpu.index not in board.gpus:
            continue
        kept, known = older.gpus.setdefault(gpu.index, GpuBoard(gpu.index)), board.gpus[gpu.index]
        for name in _BYTE_COUNTERS:
            if getattr(gpu, name) is not None and known.read_ns.get(name, gpu.t_ns) < gpu.t_ns:
                kept.values[name], kept.read_ns[name] = known.values[name], known.read_ns[name]


def take(
    older: Board, newer: Board, roles: dict[int, Role], states: dict[int, ProcState], only: frozenset[int] | None = None
) -> dict[str, object]:
    """The object, with rates from ``older`` to ``newer``, and without terminal escapes in its texts.

    ``only`` limits the processes; without it they are trainers, workers, processes on GPUs and bystanders with `LEAST_CPU_PCT`.
    """
    header, switched = newer.header, ProbedSwitches(older, newer)
    on_gpu = _gpu_procs(newer)
    pids = only if only is not None else frozenset(pid for pid in newer.procs if _matters(pid, older, newer, roles, on_gpu))
    taken: dict[str, object] = _cleaned({
        "schema": SCHEMA,
        "unix_s": header.unix_ns_of(newer.t_ns) / 1e9,
        "t_ns": newer.t_ns,
        "host": header.host,
        "hardware": _hardware(newer.host.get("hardware")),
        "sources": {
            s.name: {"state": s.state, "reason": s.reason or None, "remedy": s.remedy or None, **s.detail} for s in newer.sources.values()
        },
        "gpus": [_gpu(newer.gpus[i], older.gpus.get(i)) for i in sorted(newer.gpus)],
        "procs": [_proc(pid, older, newer, roles.get(pid), states.get(pid), on_gpu.get(pid, []), switched) for pid in sorted(pids)],
    })  # fmt: skip
    return taken


class Snapshots:
    """Follows a stream for snapshots of it at any moment, see `keep`."""

    def __init__(self) -> None:
        self.following = Following(keeps_past=True)
        self._older = Board()

    def take(self, item: Header | Frame) -> bool:
        """Take the next item of the stream; whether the engine was fed with it."""
        if isinstance(item, Frame):
            keep(self._older, self.following.board, item)
        return self.following.take(item)

    def now(self, only: Callable[[Board, dict[int, Role]], frozenset[int] | None] = lambda *_: None) -> dict[str, object]:
        """See `take` of this module; ``only`` chooses the processes."""
        board, engine = self.following.board, self.following.engine
        before = self.following.past.before(board, SECOND_NS)
        self._older.threads, self._older.probed_ns = before.threads, before.probed_ns
        taken = take(self._older, board, engine.roles, engine.states, only(board, engine.roles))
        return taken | {"incidents": lasting(engine, board)}


def lasting(engine: Engine, board: Board) -> list[Episode]:
    """The incidents that last."""
    return [plain(episode(one, board.header), clean) for one in engine.incidents if one.end_ns is None]


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _hardware(hardware: object) -> dict[str, object]:
    """The host's slow facts, lists as objects."""
    found = hardware if isinstance(hardware, Hardware) else Hardware()
    out = {name: getattr(found, name) for name in found.__struct_fields__ if name != "missing"}
    for name in ("nics", "file_systems"):
        if out[name] is not None:
            reasons = {key.removeprefix(f"{name}."): reason for key, reason in found.missing.items()}
            listed = [{field: getattr(one, field) for field in one.__struct_fields__} for one in out[name]]
            out[name] = [one | {"missing": _missing(one, reasons)} for one in listed]
    return out | {"missing": _missing(out, found.missing)}


def _gpu_procs(board: Board) -> dict[int, list[dict[str, object]]]:
    """pid -> its entries on GPUs; empty if the driver's pids are of another namespace."""
    found: dict[int, list[dict[str, object]]] = {}
    if is_foreign_list(board.infos, board.compute_pids):
        return found
    for index, gpu in board.gpus.items():
        for proc in gpu.procs:
            found.setdefault(proc.pid, []).append({"gpu": index, **_gpu_proc(proc, gpu)})
    return found


def _matters(pid: int, older: Board, newer: Board, roles: dict[int, Role], on_gpu: dict[int, list[dict[str, object]]]) -> bool:
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
    out["limits"] = limits(gpu)
    mig = gpu.values.get("mig") if gpu.values.get("mig_mode") else None
    out["mig"] = [_instance(instance) for instance in mig] if isinstance(mig, list) else None
    out["procs"] = [_gpu_proc(proc, gpu) for proc in gpu.procs] if "procs" in gpu.values else None
    shared = {made: gpu.missing[name] for made, name in _MADE_OF.items() if name in gpu.missing}
    begun = {rate: _READ_ONCE for rate, name in _BYTE_RATES.items() if name in gpu.values}
    of_parts = {name: reason for name, reason in gpu.missing.items() if name not in out}
    unsplit = {"mig": "MIG is off"} if gpu.values.get("mig_mode") is False else {}
    return out | {"missing": _missing(out, _NONE | unsplit | shared | gpu.missing | begun) | of_parts}


def _missing(out: dict[str, object], reasons: dict[str, str]) -> dict[str, str]:
    """Field -> reason, for all that is null in ``out``."""
    return {name: reasons.get(name, _UNREAD) for name, value in out.items() if value is None}


def _instance(instance: MigInstance) -> dict[str, object]:
    out = {name: getattr(instance, name) for name in instance.__struct_fields__ if name != "missing"}
    out |= {name: None for name in ("uuid", "profile") if not out[name]}
    return out | {"missing": _missing(out, instance.missing)}


def _gpu_proc(proc: GpuProc, gpu: GpuBoard) -> dict[str, object]:
    out = {name: value for name in proc.__struct_fields__ if (value := getattr(proc, name)) is not None or name != "gpu_instance"}
    reasons = dict.fromkeys(_SHARES, gpu.missing.get(f"{PART}sm_pct", _UNTOLD)) | {"mem_bytes": _UNTOLD}
    told = {name: gpu.missing[PART + name] for name in reasons if PART + name in gpu.missing}
    return out | {"missing": _missing(out, reasons | told)}


def _proc(
    pid: int,
    older: Board,
    newer: Board,
    role: Role | None,
    state: ProcState | None,
    on_gpu: list[dict[str, object]],
    switched: ProbedSwitches,
) -> dict[str, object]:
    sample, before, info = newer.procs[pid], older.procs.get(pid), newer.infos.get(pid)
    rates = proc_rates(before, sample, switched) if before else None
    counters = {name: getattr(sample, field) for name, field in _COUNTERS}
    out = {"pid": pid} | _diagnosed(role, state, info) | _identity(info) | counters | _rates(before, sample, rates)
    if role is not None and role.kind == "trainer" and info is not None:
        out["identity"] = whose(info, newer.header.host)
    return out | {"gpus": on_gpu, "missing": _missing(out, _proc_reasons(pid, newer, rates))}


def _diagnosed(role: Role | None, state: ProcState | None, info: ProcInfo | None) -> dict[str, object]:
    """The fields about a process's role and state, as far as they apply."""
    if role is None:
        return {"role": "bystander"}
    out: dict[str, object] = {"role": role.kind, "label": role.label, "rank": role.rank, "trainer_pid": role.trainer_pid}
    hidden = role.kind == "trainer" and info is not None and info.uses_cuda is None  # its environment is as closed as its maps
    out = {name: value for name, value in out.items() if value is not None or (name == "rank" and hidden)}
    if role.trainer_pid is None or role.kind == "helper":
        return out
    stated = (state.state, state.starving, state.fractions, state.inferred) if state else (None,) * len(_STATED)
    return out | dict(zip(_STATED, stated, strict=True))


def _identity(info: ProcInfo | None) -> dict[str, object]:
    names = ("ppid", "name", "cmdline", "user", "cgroup", "cpus_allowed")
    return {name: None if info is None else program_name(info) if name == "name" else getattr(info, name) for name in names}


def whose(info: ProcInfo, host: str) -> dict[str, object]:
    """`gputop.model.identity.Identity` as an object: container, pod, Slurm job, training, and why what is null is not known."""
    return dict(structs.asdict(identity_of(info, host)))


def _rates(before: ProcSample | None, sample: ProcSample, rates: ProcRates | None) -> dict[str, object]:
    """Values of all `_RATES`; ``rates`` are those from ``before`` to ``sample``."""
    if before is None or rates is None:
        return dict.fromkeys(_RATES)
    ns = sample.t_ns - before.t_ns
    main_vol_per_s, main_invol_per_s = counter_per_s(before.vol, sample.vol, ns), counter_per_s(before.invol, sample.invol, ns)
    return {
        "cpu_pct": rates.cpu_pct,
        "runq_pct": rates.runq_pct,
        "switches_per_s": rates.switches_per_s,
        "invol_per_s": rates.invol_per_s,
        "main_switches_per_s": None if main_vol_per_s is None or main_invol_per_s is None else main_vol_per_s + main_invol_per_s,
        "main_invol_per_s": main_invol_per_s,
        "disk_pct": rates.blkio_pct,
    }


def _proc_reasons(pid: int, board: Board, rates: ProcRates | None) -> dict[str, str]:
    """Field -> reason, for all fields of a process that may be null."""
    reasons = {name: f"/proc/{pid}/{file} is not readable" for name, file in _FILES.items()} | {"disk_pct": _NO_SENSE} | _UNHELD
    sample = board.procs[pid]
    reasons |= dict.fromkeys(("switches_per_s", "invol_per_s"), _UNFOLLOWED if sample.threads else _UNCOUNTED)
    if sample.run_delay_ns is not None:
        reasons["runq_pct"] = _THREADS
    reasons |= dict.fromkeys(_STATED, _NO_STATE)
    if rates is None:
        reasons |= dict.fromkeys(_RATES, _READ_ONCE)
    procfs = board.sources.get("procfs")
    no_delays = procfs.detail.get("blkio_delay_ns") if procfs else None
    return reasons | ({"disk_pct": no_delays} if no_delays else {})


# what it is made of, for `gputop schema`


def shape() -> Any:
    """Output of `gputop --once --json`, and a line of `gputop --json`."""
    process = get_type_hints(ProcSample)
    gpu = {name: kind for name, kind in get_type_hints(Gpu).items() if name in _GPU_FIELDS} | {
        "index": int, "t_ns": int | None, **dict.fromkeys(_BYTE_RATES, float | None), "limits": list[str] | None,
        "mig": _many(_like(MigInstance, uuid=str | None, profile=str | None)) | None,
        "procs": _many(_like(GpuProc, ("gpu_instance",))) | None, "missing": dict[str, str],
    }  # fmt: skip
    hardware = _like(Hardware, nics=_many(_like(Nic)) | None, file_systems=_many(_like(FileSystem)) | None)
    proc = {
        "pid": int, "role": str, "ppid": int | None, "cmdline": list[str] | None,
        **dict.fromkeys(("name", "user", "cgroup", "cpus_allowed"), str | None),
        **{name: process[field] for name, field in _COUNTERS}, **dict.fromkeys(_RATES, float | None),
        "gpus": _many(_like(GpuProc, ("gpu_instance",), name="OnGpu", gpu=int)), "missing": dict[str, str],
    }  # fmt: skip
    sometimes = {
        "label": str, "rank": int | None, "trainer_pid": int, "state": str | None, "starving": bool | None,
        "state_fractions": dict[str, float] | None, "state_inferred": bool | None, "identity": dict[str, str | dict[str, str] | None],
    }  # fmt: skip
    return _shape("Snapshot", shape.__doc__, {
        "schema": int, "unix_s": float, "t_ns": int, "host": str, "hardware": hardware, "sources": dict[str, dict[str, str | None]],
        "gpus": _many(_shape("Gpu", "One GPU; null is what was not measured, and ``missing`` says why.", gpu)),
        "procs": _many(_shape("Process", "One process, as far as its fields apply to it.", proc, sometimes)), "incidents": list[Episode],
    })  # fmt: skip


def _like(struct: type, sometimes: tuple[str, ...] = (), *, name: str = "", **instead: Any) -> Any:
    """The shape of a struct as an object with ``missing``; ``instead``: other types, and more fields."""
    kinds = get_type_hints(struct) | instead | {"missing": dict[str, str]}
    always = {field: kind for field, kind in kinds.items() if field not in sometimes}
    return _shape(name or struct.__name__, struct.__doc__, always, {field: kinds[field] for field in sometimes})


def _many(kind: Any) -> Any:
    return list.__class_getitem__(kind)


def _shape(name: str, about: str | None, always: dict[str, Any], sometimes: dict[str, Any] | None = None) -> Any:
    fields: list[Any] = [*always.items(), *((field, kind | UnsetType, UNSET) for field, kind in (sometimes or {}).items())]
    return defstruct(name, fields, namespace={"__doc__": (about or "").partition("\n\n")[0]}, module=__name__, kw_only=True)
