"""Every field that is recorded stands in a SQL table, or in the list of exemptions below, with the reason."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from gputop.model.frame import Frame, ProcInfo
from gputop.tables.events import TALLIED
from gputop.tables.rows import FieldNames
from gputop.tables.schema import PROCESS, TABLES
from gputop.tables.threads import COUNTED

STRUCTURE = "it orders the stream: time, key and what to forget"
MERGED = "of merged frames, for the diagnosis of long recordings; the tick's own readings stand in gpu and proc"
ONCE = "it stays the same for a whole recording: gputop replay --json has it"
LIMITS = "it rarely changes: gputop replay --json has it"
THREADS = "one row a thread and tick would be most of the database; proc has the process's sums"
JUDGED = "only the diagnosis uses it; process.role and incident have what follows from it"
HISTOGRAM = "a distribution is no column; sync, copy and proc have count, sum and maximum"
OWN = "about gputop itself: the screen's header and gputop doctor show it"
PRIVATE = "it may name people or secrets; the screen shows it where it helps"
JUDGED_WAYS = "it chooses a fix; process has the library, devices and variables"
WHOSE = "process has what follows from it: container, pod, Slurm job, training"
TRACED = "tables trace and kernel are made of it"
UNUSED = "no source fills it; it keeps its place in the stream"
_EXEMPT = {
    STRUCTURE: "Frame: seq t_ns late_ns missed key gone infos ticks Gpu: t_ns missing Host: t_ns Probes: t_ns gone forgotten Stack: t_ns "
               "ProcSample: start_ticks Collective: t_ns DriverError: t_ns",
    MERGED: "Frame: met readings Met: pid times state syscall syscall_arg wchan GpuReading: index t_ns util_pct power_w power_instant "
            "gr_active_pct",
    ONCE: "Gpu: numa_node near_cpus name uuid architecture pci_bus_id "
          "sm_clock_max_mhz mem_clock_max_mhz power_limit_default_w power_limit_max_w pcie_gen_max "
          "pcie_width_max nvlink_links power_instant util_t_ns mem_reserved_bytes",
    LIMITS: "Gpu: compute_mode fabric_state fabric_health mig mig_mode remapped_rows remap_pending remap_failed retired_pages held_by "
            "nvlinks NvLinkCounts: link replays recoveries failed_recoveries crc_errors symbol_errors bit_error_rate "
            "MigInstance: index uuid gpu_instance compute_instance profile sm_count mem_total_bytes mem_used_bytes util_pct sm_active_pct "
            "missing",
    THREADS: "ThreadSample: tid oncpu_ns run_delay_ns timeslices state vol invol syscall syscall_arg wchan ThreadInfo: tid comm "
             "ProcInfo: threads ProcSample: threads timeslices unfollowed SchedThread: oncpu_ns preempted_ns comm",
    JUDGED: "ProcInfo: uid ns_pid uses_cuda libs wait_unreadable sockets session cpu_cgroup policy other_ends read_by serves "
            "ProcSample: syscall_arg children_ns locked_by lock_tid exit_code shared_futex CudaCall: inflight_ns",
    HISTOGRAM: "SchedThread: hist CudaCall: hist sums",
    OWN: "Frame: cost sources SourceState: name state reason remedy detail SelfCost: cpu_ns rss_bytes nvml_ns nvml_calls proc_ns dropped "
         "Gpu: nvml_calls Probes: map_used map_size lost drain_ns run_ns",
    PRIVATE: "ProcInfo: env exe Stack: source gil state thread missing",
    WHOSE: "ProcInfo: other_cgroups names Names: container pod namespace pod_by runtime container_id pod_uid net_ns missing "
           "packages",
    JUDGED_WAYS: "Transport: configured lacks_devices shm_bytes missing",
    TRACED: "Frame: traces TracedJob: pid name took_s reading checks error by TraceCheck: part trace_pct gputop_pct agrees "
            "TraceReading: file pid bytes events start_unix_ns span_ns steps gpu_busy_pct idle kernels operators exposed copies sync_calls "
            "loader_wait_pct loading_pct optimizer_pct sync_pct copy_pct launches missing left_out launched sync_lines "
            "Named: name count total_ns share_pct mean_ns Copies: direction memory count bytes total_ns share_pct "
            "Idle: loader_pct sync_pct copy_pct launch_pct host_pct Launched: kernels fusible graphs",
    UNUSED: "ProcSample: kernel_stack swapin_delay_ns",
}  # fmt: skip
"""Reason -> fields by struct."""
NAMED_OTHERWISE = {  # columns of `process` with other names
    "ProcInfo.comm", "ProcInfo.group_sizes", "ProcInfo.transport",
    *(f"Transport.{name}" for name in ("library", "version", "shm", "devices", "variables")),
}  # fmt: skip


def _exempt() -> set[str]:
    found, struct = set(NAMED_OTHERWISE), ""
    for word in " ".join(_EXEMPT.values()).split():
        struct = word if word.endswith(":") else struct
        if word != struct:
            found.add(f"{struct[:-1]}.{word}")
    return found


def _struct(kind: Any) -> type[msgspec.Struct] | None:
    """The struct in a type such as ``list[Gpu] | None``."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for inner in get_args(kind) if (found := _struct(inner))), None)


def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def _all_fields() -> set[str]:
    """``Struct.field`` of every struct in a frame."""
    due, seen = [Frame], set[type[msgspec.Struct]]()
    while due:
        if (struct := due.pop()) not in seen:
            seen.add(struct)
            due += [inner for kind in _fields(struct).values() if (inner := _struct(kind))]
    return {f"{struct.__name__}.{name}" for struct in seen for name in _fields(struct)}


def _resolved(path: str) -> list[str]:
    """``Struct.field`` of each step of a path such as ``host.psi.cpu_some_ns``."""
    struct: type[msgspec.Struct] | None = Frame
    found = []
    for name in path.split("."):
        assert struct is not None, path
        found.append(f"{struct.__name__}.{name}")
        struct = _struct(_fields(struct)[name])
    return found


def _in_tables() -> set[str]:
    paths = {*TALLIED, *COUNTED, "marks.t_ns", "marks.text"}
    for spec in TABLES.values():
        names = FieldNames()
        for column in spec.columns if spec.path else ():
            column.make(names)
        paths |= {".".join((*spec.path, name)) for name in names.names}
        paths |= {".".join((*spec.path[:-1], name)) for name in names.of_owner}
    identities = {column.name for column in PROCESS.columns} & _fields(ProcInfo).keys()
    return {field for path in paths for field in _resolved(path)} | {f"ProcInfo.{name}" for name in identities}


def test_each_field_has_a_column_or_a_reason() -> None:
    missing = _all_fields() - _in_tables()
    assert sorted(missing - _exempt()) == [], "give it a column in gputop/tables/schema.py, or a reason here"
    assert sorted(_exempt() - missing) == [], "it has a column, or there is no such field any more"
