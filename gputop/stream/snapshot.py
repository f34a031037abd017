"""One moment, which `gputop --json` prints; its structs are what `gputop schema snapshot` describes. Units are in the names.

Values that were not measured are null, with the reason in ``missing`` next to them. Fields that do not apply to a process (a rank, the
state of a bystander, a GPU instance outside MIG, ``identity`` of all but trainers) are left out. ``oncpu_ns``, ``run_delay_ns``,
``runq_pct``, ``vol_switches`` and
``invol_switches`` are the main thread's; ``runq_pct`` is null if other threads were not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, Struct, UnsetType, structs

from gputop.diagnosis import Engine
from gputop.findings.explanation import Episode, episode
from gputop.findings.sentence import plain
from gputop.findings.verdict import ProcState
from gputop.findings.ways import Way
from gputop.model.board import Board, GpuBoard
from gputop.model.collective import CollectiveNow
from gputop.model.driverlog import XID, DriverError
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
    NetSample,
    Nic,
    ProcInfo,
    ProcSample,
    RdmaPort,
    Transport,
)
from gputop.model.identity import Identity, identity_of
from gputop.model.rates import ProbedSwitches, ProcRates, counter_per_s, gpu_bytes_per_s, proc_rates
from gputop.model.roles import Role, is_foreign_list, program_name
from gputop.model.serving import ServingNow, serving_now
from gputop.model.xids import advice_on, meaning_of
from gputop.stream.following import Following
from gputop.system.text import clean

SCHEMA = 1
LEAST_CPU_PCT = 1.0  # of a bystander that is listed


class NicNow(Nic, frozen=True, array_like=False, kw_only=True):
    """One network interface."""

    missing: dict[str, str]


class FileSystemNow(FileSystem, frozen=True, array_like=False, kw_only=True):
    """One mounted file system."""

    missing: dict[str, str]


class NetNow(NetSample, frozen=True, array_like=False, kw_only=True):
    """What one network interface has carried, and carries. RDMA stands in none."""

    rx_bytes_per_s: float | None
    tx_bytes_per_s: float | None
    missing: dict[str, str]


class RdmaNow(RdmaPort, frozen=True, array_like=False, kw_only=True):
    """One port of an RDMA device: InfiniBand, RoCE, EFA."""

    rx_bytes_per_s: float | None
    tx_bytes_per_s: float | None


class DriverErrorNow(DriverError, frozen=True, omit_defaults=False, kw_only=True):
    """An error that NVIDIA's driver has reported in the kernel's log since the boot."""

    unix_s: float  # when it was logged last, about: the log's clock is never set
    meaning: str | None  # null for an SXid, and for an Xid that NVIDIA's catalog lacks
    advice: str | None


class HardwareNow(Hardware, frozen=True, omit_defaults=False):
    """Slow facts of the host."""

    nics: list[NicNow] | None = None  # type: ignore[assignment]  # each with reasons
    file_systems: list[FileSystemNow] | None = None  # type: ignore[assignment]  # as above


class MigNow(MigInstance, frozen=True, omit_defaults=False):
    """One MIG device."""

    uuid: str | None = None  # type: ignore[assignment]  # null, not empty, where the driver has none
    profile: str | None = None  # type: ignore[assignment]  # as above


class GpuProcNow(GpuProc, frozen=True, array_like=False, kw_only=True):
    """One process on one GPU."""

    gpu_instance: int | UnsetType = UNSET  # type: ignore[assignment]  # left out without MIG
    missing: dict[str, str]


class OnGpu(GpuProcNow, frozen=True, kw_only=True):
    """A process's entry on one GPU."""

    gpu: int


class GpuNow(Gpu, frozen=True, omit_defaults=False, kw_only=True):
    """One GPU; null is what was not measured, and ``missing`` says why."""

    t_ns: int | None  # type: ignore[assignment]  # null before the first reading
    nvlink_tx_bytes_per_s: float | None
    nvlink_rx_bytes_per_s: float | None
    c2c_tx_bytes_per_s: float | None
    c2c_rx_bytes_per_s: float | None
    limits: list[str] | None
    xid_meaning: str | None
    xid_advice: str | None
    mig: list[MigNow] | None  # type: ignore[assignment]  # each with reasons
    procs: list[GpuProcNow] | None  # type: ignore[assignment]  # as above


class WayNow(Struct, frozen=True, kw_only=True):
    """A way on which a rank's data move to other ranks."""

    kind: str  # ``nvlink``, ``shm``, ``rdma`` or ``sockets``
    on: str
    bytes_per_s: float | None
    missing: dict[str, str]


class TransportNow(Transport, frozen=True, omit_defaults=False, kw_only=True):
    """How a rank's data reach other ranks: what it could use, and the ways on which they move, the one that carries most first."""

    library: str | None  # type: ignore[assignment]  # null, not empty, where it maps none
    version: str | None  # type: ignore[assignment]  # as above
    ways: list[WayNow]


class ProcessNow(Struct, frozen=True, kw_only=True, gc=False):
    """One process, as far as its fields apply to it."""

    pid: int
    role: str
    part: str | UnsetType = UNSET  # what it does in its job: a word of `gputop.findings.verdict.PARTS`
    label: str | UnsetType = UNSET
    rank: int | UnsetType | None = UNSET
    trainer_pid: int | UnsetType = UNSET
    state: str | UnsetType | None = UNSET
    starving: bool | UnsetType | None = UNSET
    state_fractions: dict[str, float] | UnsetType | None = UNSET
    state_inferred: bool | UnsetType | None = UNSET
    ppid: int | None
    name: str | None
    cmdline: list[str] | None
    user: str | None
    cgroup: str | None
    cpus_allowed: str | None
    kernel_state: str
    t_ns: int
    start_ticks: int
    utime_ns: int
    stime_ns: int
    oncpu_ns: int | None
    run_delay_ns: int | None
    vol_switches: int | None
    invol_switches: int | None
    rss_bytes: int
    num_threads: int
    majflt: int | None
    read_bytes: int | None
    write_bytes: int | None
    anon_bytes: int | None
    shared_bytes: int | None
    wire_busy_ns: int | None
    wire_sent_bytes: int | None
    wire_received_bytes: int | None
    wire_retrans: int | None
    wire_rtt_us: int | None
    cpu_pct: float | None
    runq_pct: float | None
    switches_per_s: float | None
    invol_per_s: float | None
    main_switches_per_s: float | None
    main_invol_per_s: float | None
    disk_pct: float | None
    identity: Identity | UnsetType = UNSET
    transport: TransportNow | UnsetType = UNSET  # of a trainer that has peers, once it was read
    collectives: list[CollectiveNow] | UnsetType = UNSET  # of a rank that writes them (NCCL's Inspector), those that take most first
    gpus: list[OnGpu]
    missing: dict[str, str]


class Snapshot(Struct, frozen=True, kw_only=True):
    """Output of `gputop --once --json`, and a line of `gputop --json`."""

    schema: int = SCHEMA
    unix_s: float
    t_ns: int
    host: str
    hardware: HardwareNow
    nets: list[NetNow] | None  # null, as the next one, if its source was not read: ``host``, ``nics``
    rdma: list[RdmaNow] | None
    sources: dict[str, dict[str, str | None]]
    gpus: list[GpuNow]
    driver_errors: list[DriverErrorNow] = []  # the latest first; ``sources`` has why the log cannot be read
    procs: list[ProcessNow]
    servers: list[ServingNow]
    incidents: Sequence[Episode]  # those that last


_GPU_FIELDS = tuple(name for name in Gpu.__struct_fields__ if name not in ("index", "t_ns", "missing", "procs", "mig"))
_BYTE_COUNTERS = ("pcie_rx_bytes", "pcie_tx_bytes", "nvlink_rx_bytes", "nvlink_tx_bytes", "c2c_rx_bytes", "c2c_tx_bytes")
_BYTE_RATES = {f"{name}_per_s": name for name in _BYTE_COUNTERS}
_MADE_OF = _BYTE_RATES | {"limits": "throttle_mask", "mig": "mig_mode", "xid_meaning": "xid", "xid_advice": "xid"}
"""Derived field -> the field that it is made of; both have the same reason."""
_OF_NETWORK = ("nets", "rdma")
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
_THREADS = "only trainers, workers and processes that feed them are read thread by thread"
_UNCOUNTED_WAY = "shared memory is not counted, nor bytes by some drivers"
_UNHELD = {
    "anon_bytes": "only trainers' and workers' is read",
    "shared_bytes": "only workers' is read, now and then, if smaps_rollup is readable",
} | dict.fromkeys(
    ("wire_busy_ns", "wire_sent_bytes", "wire_received_bytes", "wire_retrans", "wire_rtt_us"),
    "read of trainers with other ranks that have TCP connections; in a network namespace of their own as root",
)
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
    *((name, name) for name in ("wire_busy_ns", "wire_sent_bytes", "wire_received_bytes", "wire_retrans", "wire_rtt_us")),
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
    for name in _OF_NETWORK:
        read_ns = board.host_read_ns.get(name)
        if frame.host is not None and getattr(frame.host, name) is not None and read_ns is not None and read_ns < frame.host.t_ns:
            older.host[name], older.host_read_ns[name] = board.host[name], read_ns
    for gpu in frame.gpus:
        if gpu.index not in board.gpus:
            continue
        kept, known = older.gpus.setdefault(gpu.index, GpuBoard(gpu.index)), board.gpus[gpu.index]
        for name in _BYTE_COUNTERS:
            if getattr(gpu, name) is not None and known.read_ns.get(name, gpu.t_ns) < gpu.t_ns:
                kept.values[name], kept.read_ns[name] = known.values[name], known.read_ns[name]


def take(
    older: Board, newer: Board, roles: dict[int, Role], states: dict[int, ProcState], only: frozenset[int] | None = None,
    incidents: Sequence[Episode] = (), servers: Sequence[ServingNow] = (), ways: Mapping[int, Sequence[Way]] | None = None,
    collectives: Mapping[int, Sequence[CollectiveNow]] | None = None,
) -> Snapshot:  # fmt: skip
    """Return the snapshot, with rates from ``older`` to ``newer``, and without terminal escapes in its texts.

    ``ways``: pid of a rank -> the ways on which its data move; ``collectives``: its collectives by name.
    ``only`` limits the processes; without it they are trainers, workers, processes on GPUs and bystanders with `LEAST_CPU_PCT`.
    """
    header, switched = newer.header, ProbedSwitches(older, newer)
    on_gpu = _gpu_procs(newer)
    pids = only if only is not None else frozenset(pid for pid in newer.procs if _matters(pid, older, newer, roles, on_gpu))
    sources = newer.sources.values()

    def moved(pid: int) -> tuple[Sequence[Way], Sequence[CollectiveNow]]:
        return (ways or {}).get(pid, ()), (collectives or {}).get(pid, ())

    return Snapshot(
        unix_s=header.unix_ns_of(newer.t_ns) / 1e9,
        t_ns=newer.t_ns,
        host=clean(header.host),
        hardware=_hardware(newer.host.get("hardware")),
        nets=_carriers("nets", NetNow, older, newer),
        rdma=_carriers("rdma", RdmaNow, older, newer),
        sources=_cleaned({s.name: {"state": s.state, "reason": s.reason or None, "remedy": s.remedy or None, **s.detail} for s in sources}),
        gpus=[_gpu(newer.gpus[i], older.gpus.get(i)) for i in sorted(newer.gpus)],
        driver_errors=[_driver_error(one, header) for one in sorted(newer.driver_errors.values(), key=lambda one: -one.logged_ns)],
        procs=[
            _proc(pid, older, newer, roles.get(pid), states.get(pid), on_gpu.get(pid, []), switched, moved(pid))
            for pid in sorted(pids)
        ],
        servers=[plain(one, clean) for one in servers],
        incidents=incidents,
    )


class Snapshots:
    """Follows a stream for snapshots at any moment, see `keep`."""

    def __init__(self) -> None:
        self.following = Following(keeps_past=True)
        self._older = Board()

    def take(self, item: Header | Frame) -> bool:
        """Take the next item of the stream; whether the engine was fed with it."""
        if isinstance(item, Frame):
            keep(self._older, self.following.board, item)
        return self.following.take(item)

    def now(self, only: Callable[[Board, dict[int, Role]], frozenset[int] | None] = lambda *_: None) -> Snapshot:
        """See `take` of this module; ``only`` chooses the processes."""
        board, engine = self.following.board, self.following.engine
        before = self.following.past.before(board, SECOND_NS)
        self._older.threads, self._older.probed_ns = before.threads, before.probed_ns
        chosen, incidents = only(board, engine.roles), lasting(engine, board)
        ways, collectives = (engine.facts.ways, engine.facts.collectives) if engine.facts is not None else (None, None)
        servers = servers_of(engine, board)
        return take(self._older, board, engine.family, engine.states, chosen, incidents, servers, ways, collectives)


def lasting(engine: Engine, board: Board) -> list[Episode]:
    """The incidents that last."""
    return [plain(episode(one, board.header), clean) for one in engine.incidents if one.end_ns is None]


def servers_of(engine: Engine, board: Board) -> list[ServingNow]:
    """Inference servers, by the diagnosis' last window; before it has one, as their first pages have it."""
    found = {(one.pid, one.address, one.engine, one.model): one for one in engine.facts.servings} if engine.facts is not None else {}
    return [found.get(key) or serving_now(None, page) for key, page in sorted(board.servings.items())]


def _cleaned(values: dict[str, Any]) -> dict[str, Any]:
    """Clean the texts among the values, and return these; structs are made of clean ones."""
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = clean(value)
        elif isinstance(value, dict):
            values[name] = _cleaned(dict(value))
        elif isinstance(value, list):
            values[name] = [clean(one) if isinstance(one, str) else one for one in value]
    return values


def _hardware(hardware: object) -> HardwareNow:
    """The host's slow facts."""
    found = hardware if isinstance(hardware, Hardware) else Hardware()
    out = structs.asdict(found)
    for name, kind in (("nics", NicNow), ("file_systems", FileSystemNow)):
        if out[name] is not None:
            reasons = {key.removeprefix(f"{name}."): reason for key, reason in found.missing.items()}
            listed = [structs.asdict(one) for one in out[name]]
            out[name] = [kind(**_cleaned(one | {"missing": _missing(one, reasons)})) for one in listed]
    return HardwareNow(**_cleaned(out | {"missing": _missing(out, found.missing)}))


_Carrier = TypeVar("_Carrier", NetNow, RdmaNow)


def _carriers(name: str, kind: type[_Carrier], older: Board, newer: Board) -> list[_Carrier] | None:
    """Network interfaces (``nets``) or ports (``rdma``) with their rates; None if they were not read."""
    listed, before, ns = newer.host.get(name), older.host.get(name), newer.host_read_ns.get(name, 0) - older.host_read_ns.get(name, 0)
    if not isinstance(listed, list):
        return None
    stood = {one.name: one for one in before} if isinstance(before, list) else {}
    found = list[_Carrier]()
    for one in listed:
        out, was = structs.asdict(one), stood.get(one.name)
        for counter in ("rx_bytes", "tx_bytes"):
            out[f"{counter}_per_s"] = None if was is None else counter_per_s(getattr(was, counter), out[counter], ns)
        reasons = {"flaps": "it is no hardware"} | dict(out.pop("missing", {}))
        rates = {rate: reasons.get(rate.removesuffix("_per_s"), _READ_ONCE) for rate in ("rx_bytes_per_s", "tx_bytes_per_s")}
        found.append(kind(**_cleaned(out | {"missing": _missing(out, rates | reasons)})))
    return found


def _gpu_procs(board: Board) -> dict[int, list[OnGpu]]:
    """pid -> its entries on GPUs; empty if the driver's pids are of another namespace."""
    found: dict[int, list[OnGpu]] = {}
    if is_foreign_list(board.infos, board.compute_pids):
        return found
    for index, gpu in board.gpus.items():
        for proc in gpu.procs:
            found.setdefault(proc.pid, []).append(OnGpu(gpu=index, **_gpu_proc(proc, gpu)))
    return found


def _matters(pid: int, older: Board, newer: Board, roles: dict[int, Role], on_gpu: dict[int, list[OnGpu]]) -> bool:
    if pid in roles or pid in on_gpu:
        return True
    before = older.procs.get(pid)
    rates = proc_rates(before, newer.procs[pid]) if before else None
    return rates is not None and rates.cpu_pct >= LEAST_CPU_PCT


def _gpu(gpu: GpuBoard, before: GpuBoard | None) -> GpuNow:
    newest_ns = max(gpu.read_ns.values(), default=None)
    out: dict[str, object] = {"index": gpu.index, "t_ns": gpu.read_ns.get("util_pct", newest_ns)}
    out |= {name: gpu.values.get(name) for name in _GPU_FIELDS}
    for name in _BYTE_COUNTERS:
        out[f"{name}_per_s"] = gpu_bytes_per_s(before, gpu, name)
    out["limits"] = limits(gpu)
    out["xid_meaning"], out["xid_advice"] = meaning_of(gpu.number("xid")), advice_on(gpu.number("xid"))
    mig = gpu.values.get("mig") if gpu.values.get("mig_mode") else None
    out["mig"] = [_instance(instance) for instance in mig] if isinstance(mig, list) else None
    out["procs"] = [GpuProcNow(**_gpu_proc(proc, gpu)) for proc in gpu.procs] if "procs" in gpu.values else None
    shared = {made: gpu.missing[name] for made, name in _MADE_OF.items() if name in gpu.missing}
    begun = {rate: _READ_ONCE for rate, name in _BYTE_RATES.items() if name in gpu.values}
    of_parts = {name: reason for name, reason in gpu.missing.items() if name not in out}
    unsplit = {"mig": "MIG is off"} if gpu.values.get("mig_mode") is False else {}
    return GpuNow(**_cleaned(out | {"missing": _missing(out, _NONE | unsplit | shared | gpu.missing | begun) | of_parts}))


def _driver_error(one: DriverError, header: Header) -> DriverErrorNow:
    known = one.number if one.kind == XID else None
    own: dict[str, Any] = {name: clean(value) if isinstance(value, str) else value for name, value in structs.asdict(one).items()}
    return DriverErrorNow(**own, unix_s=header.unix_ns_of(one.logged_ns) / 1e9, meaning=meaning_of(known), advice=advice_on(known))


def _missing(out: dict[str, object], reasons: dict[str, str]) -> dict[str, str]:
    """Field -> reason, for all that is null in ``out``."""
    return {name: reasons.get(name, _UNREAD) for name, value in out.items() if value is None}


def _instance(instance: MigInstance) -> MigNow:
    out = structs.asdict(instance) | {name: getattr(instance, name) or None for name in ("uuid", "profile")}
    return MigNow(**_cleaned(out | {"missing": _missing(out, instance.missing)}))


def _gpu_proc(proc: GpuProc, gpu: GpuBoard) -> dict[str, Any]:
    """Return the fields of `GpuProcNow`."""
    out = {name: value for name in proc.__struct_fields__ if (value := getattr(proc, name)) is not None or name != "gpu_instance"}
    reasons = dict.fromkeys(_SHARES, gpu.missing.get(f"{PART}sm_pct", _UNTOLD)) | {"mem_bytes": _UNTOLD}
    told = {name: gpu.missing[PART + name] for name in reasons if PART + name in gpu.missing}
    return _cleaned(out | {"missing": _missing(out, reasons | told)})


def _proc(
    pid: int,
    older: Board,
    newer: Board,
    role: Role | None,
    state: ProcState | None,
    on_gpu: list[OnGpu],
    switched: ProbedSwitches,
    moved: tuple[Sequence[Way], Sequence[CollectiveNow]],
) -> ProcessNow:
    sample, before, info, (ways, collectives) = newer.procs[pid], older.procs.get(pid), newer.infos.get(pid), moved
    rates = proc_rates(before, sample, switched) if before else None
    counters = {name: getattr(sample, field) for name, field in _COUNTERS}
    out = _cleaned({"pid": pid} | _diagnosed(role, state, info) | _names(info) | counters | _rates(before, sample, rates))
    out["missing"] = _missing(out, _proc_reasons(pid, newer, rates))
    if role is not None and role.kind == "trainer" and info is not None:
        out["identity"] = plain(identity_of(info, newer.header.host), clean)
        if info.transport is not None:
            out["transport"] = _transport(info.transport, ways)
        if collectives:
            out["collectives"] = [plain(one, clean) for one in collectives]
    return ProcessNow(gpus=on_gpu, **out)


def _transport(one: Transport, ways: Sequence[Way]) -> TransportNow:
    out = structs.asdict(one) | {"library": one.library or None, "version": one.version or None}
    told = [structs.asdict(way) for way in ways]
    listed = [WayNow(**_cleaned(way | {"missing": _missing(way, {"bytes_per_s": _UNCOUNTED_WAY})})) for way in told]
    reasons = {"library": "it maps neither NCCL nor RCCL", "version": "it maps neither NCCL nor RCCL", "shm_bytes": "it has no /dev/shm"}
    return TransportNow(ways=listed, **_cleaned(out | {"missing": one.missing | _missing(out, reasons | one.missing)}))


def _diagnosed(role: Role | None, state: ProcState | None, info: ProcInfo | None) -> dict[str, object]:
    """The fields about a process's role and state, as far as they apply."""
    if role is None:
        return {"role": "bystander"}
    out: dict[str, object] = {"role": role.kind, "label": role.label, "rank": role.rank, "trainer_pid": role.trainer_pid}
    out["part"] = role.part or None
    hidden = role.kind == "trainer" and info is not None and info.uses_cuda is None  # its environment is as closed as its maps
    out = {name: value for name, value in out.items() if value is not None or (name == "rank" and hidden)}
    if role.trainer_pid is None or role.kind == "helper":
        return out
    stated = (state.state, state.starving, state.fractions, state.inferred) if state else (None,) * len(_STATED)
    return out | dict(zip(_STATED, stated, strict=True))


def _names(info: ProcInfo | None) -> dict[str, object]:
    names = ("ppid", "name", "cmdline", "user", "cgroup", "cpus_allowed")
    return {name: None if info is None else program_name(info) if name == "name" else getattr(info, name) for name in names}


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
    return reasons | ({"disk_pct": clean(no_delays)} if no_delays else {})
