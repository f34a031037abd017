"""Observers, which turn frames into columns: each puts the fresh readings of one part of a frame into the history.

A new series is a line in `gputop.model.fields`, and an observer here that stands in `OBSERVERS`. Observers run *before* the frame is
folded into the board: the board is the older moment, the frame the newer one. Two ticks that saw the same measurement of a driver count
as one. Inference servers have `ServerSeries`: their readings are of several pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from operator import attrgetter
from typing import TypeVar

from gputop.model.board import Board, GpuBoard
from gputop.model.fields import FIELDS, FIRST_TOKEN, JOBS_MEMORY, KV_USED, NIC, RDMA, RUNNING, TOKENS, WAITING
from gputop.model.frame import CpuSample, DiskSample, Frame, Gpu, NetSample, Psi, RdmaPort
from gputop.model.gpu import instance_subject
from gputop.model.histogram import quantile
from gputop.model.machine import nic_subject
from gputop.model.rates import bytes_per_s, cpu_deltas
from gputop.model.serving import ServingNow, ServingTracks, newest, subject_of, total_of, whole, worst_of
from gputop.stream.history import History

_GAUGES = (
    ("gpu.power_w", "power_w"), ("gpu.gr_active_pct", "gr_active_pct"), ("gpu.sm_active_pct", "sm_active_pct"),
    ("gpu.sm_occupancy_pct", "sm_occupancy_pct"),
    ("gpu.tensor_active_pct", "tensor_active_pct"), ("gpu.dram_active_pct", "dram_active_pct"), ("gpu.temp_c", "temp_c"),
    ("gpu.sm_clock_mhz", "sm_clock_mhz"),
)  # fmt: skip
_GAUGE_IDS = tuple(field_id for field_id, _ in _GAUGES)
_gauges = attrgetter(*(name for _, name in _GAUGES))
_UTILIZATION = (("gpu.util_pct", "util_pct"), ("gpu.mem_util_pct", "mem_util_pct"))
_RATES = tuple(
    (field_id, tuple((name, f"{name}_per_s") for name in counters))
    for field_id, counters in (
        ("gpu.pcie_rx_mb_per_s", ("pcie_rx_bytes",)), ("gpu.pcie_tx_mb_per_s", ("pcie_tx_bytes",)),
        ("gpu.c2c_rx_mb_per_s", ("c2c_rx_bytes",)), ("gpu.c2c_tx_mb_per_s", ("c2c_tx_bytes",)),
        ("gpu.nvlink_mb_per_s", ("nvlink_rx_bytes", "nvlink_tx_bytes")),
    )
)  # fmt: skip
"""(field id, ((counter of bytes, rate that the driver gives instead), …)): the parts are summed."""
_PSI = (("psi.cpu_pct", "cpu_some_ns"), ("psi.io_pct", "io_some_ns"), ("psi.memory_pct", "memory_some_ns"))
_SYNCHRONIZE = "Synchronize"  # part of the name of each CUDA call that waits for the GPU
SHARE_NS = 1_100_000_000  # ns before a reading that it may tell of: most processes are read once a second, a little late
ROUNDED_NS = 20_000_000  # ns; a process is read some ms before or after the time of its tick, and recordings round times
NO_SHARE = 0.08  # eighths of a CPU (1 %) up to which a process counts as at rest
T = TypeVar("T", DiskSample, NetSample, RdmaPort)


def observe_gpus(board: Board, frame: Frame, history: History) -> None:
    """The readings of each GPU; subject: its index."""
    for gpu in frame.gpus:
        older = board.gpus.get(gpu.index) or GpuBoard(gpu.index)
        for field_id, value in zip(_GAUGE_IDS, _gauges(gpu), strict=True):
            if value is not None:
                history.put(field_id, gpu.index, value)
        for field_id, name in _UTILIZATION:
            value = getattr(gpu, name)
            if value is not None and _is_new(older, gpu, field_id, name, value, history):
                history.put(field_id, gpu.index, value)
        total = gpu.mem_total_bytes or older.number("mem_total_bytes")
        if gpu.mem_used_bytes is not None and total:
            history.put("gpu.mem_used_pct", gpu.index, 100 * gpu.mem_used_bytes / total)
        for device in gpu.mig or ():
            if device.util_pct is not None:
                history.put("mig.util_pct", instance_subject(gpu.index, device.index), device.util_pct)
        for field_id, counters in _RATES:
            rates = [_rate(older, gpu, name, per_s) for name, per_s in counters]
            known = [rate for rate in rates if rate is not None]
            if len(known) == len(rates):
                history.put(field_id, gpu.index, sum(known) / 1e6)


def _is_new(older: GpuBoard, gpu: Gpu, field_id: str, name: str, value: float, history: History) -> bool:
    """True if the driver has measured again since the reading before.

    Its own time of measurement (`Gpu.util_t_ns`) shows it, or a changed value. An unchanged value without a time counts once per refresh
    interval of the field: a steady load is measured too.
    """
    if gpu.util_t_ns is not None:
        return gpu.util_t_ns != older.values.get("util_t_ns")
    if value != older.values.get(name):
        return True
    last = history.at((field_id, gpu.index), gpu.t_ns, FIELDS[field_id].refresh_ns)
    return last != last


def _rate(older: GpuBoard, gpu: Gpu, name: str, per_s: str) -> float | None:
    """Bytes per second, by the counter ``name`` since the older reading, else as the driver gives it in the field ``per_s``."""
    count, driver_rate = getattr(gpu, name), getattr(gpu, per_s, None)
    if count is None:
        return driver_rate
    return bytes_per_s(older.number(name), count, gpu.t_ns - older.read_ns.get(name, 0), driver_rate)


def observe_host(board: Board, frame: Frame, history: History) -> None:
    """CPU use, pressure, disk, network and RDMA throughput; subject 0."""
    host = frame.host
    if host is None:
        return
    if host.cpus is not None and isinstance(old := board.host.get("cpus"), list):
        _put_busy_cpus(old, host.cpus, history)
    if host.psi is not None and isinstance(psi := board.host.get("psi"), Psi):
        _put_pressure(psi, host.psi, host.t_ns - board.host_read_ns["psi"], history)
    if host.disks is not None and isinstance(disks := board.host.get("disks"), list):
        _put_throughput("disk.read_mb_per_s", disks, host.disks, lambda d: d.read_bytes, host.t_ns - board.host_read_ns["disks"], history)
    if host.nets is not None and isinstance(nets := board.host.get("nets"), list):
        _put_throughput("net.rx_mb_per_s", nets, host.nets, lambda n: n.rx_bytes, host.t_ns - board.host_read_ns["nets"], history)
    if host.rdma and isinstance(ports := board.host.get("rdma"), list):
        _put_throughput(RDMA, ports, host.rdma, lambda p: p.rx_bytes, host.t_ns - board.host_read_ns["rdma"], history)


def _put_busy_cpus(older: list[CpuSample], newer: list[CpuSample], history: History) -> None:
    times = cpu_deltas(older, newer).values()
    worked_ns = sum(worked for worked, _ in times)
    total_ns = worked_ns + sum(idle for _, idle in times)
    if total_ns > 0:
        history.put("cpu.busy_pct", 0, 100 * worked_ns / total_ns)


def _put_pressure(older: Psi, newer: Psi, span_ns: int, history: History) -> None:
    for field_id, name in _PSI:
        before, after = getattr(older, name), getattr(newer, name)
        if before is not None and after is not None and span_ns > 0:
            history.put(field_id, 0, min(100.0, 100 * max(0, after - before) / span_ns))


def _put_throughput(
    field_id: str, older: list[T], newer: list[T], count: Callable[[T], int | None], span_ns: int, history: History
) -> None:
    """MB/s, summed over the devices that are in both readings."""
    before = {device.name: known for device in older if (known := count(device)) is not None}
    both = [(before[device.name], known) for device in newer if device.name in before and (known := count(device)) is not None]
    moved = sum(max(0, new - old) for old, new in both)
    if span_ns > 0 and (both or not newer):
        history.put(field_id, 0, moved / span_ns * 1000)


def observe_nics(board: Board, frame: Frame, history: History) -> None:
    """What the cards receive over which ranks exchange data; subject: `nic_subject` of the interface or port."""
    host = frame.host
    if host is None or not (host.nets or host.rdma):
        return
    interfaces = {proc.wire_interface for proc in board.procs.values()} if host.nets else set[str | None]()
    devices = {device for info in board.infos.values() if info.transport is not None for device in info.transport.devices}
    for name, listed in (("nets", host.nets), ("rdma", host.rdma)):
        stood = board.host.get(name)
        span_ns = host.t_ns - board.host_read_ns.get(name, host.t_ns)
        before = {one.name: one.rx_bytes for one in stood} if isinstance(stood, list) else {}
        for one in listed or ():
            used = one.name in interfaces if name == "nets" else one.name.partition("/")[0] in devices
            old = before.get(one.name)
            if used and old is not None and one.rx_bytes is not None and span_ns > 0:
                history.put(NIC, nic_subject(one.name), max(0, one.rx_bytes - old) / span_ns * 1000)


def observe_workers(board: Board, frame: Frame, history: History) -> None:
    """Run-queue share, off-CPU share and context switches of trainers and workers together, from /proc; subject 0.

    Main threads only: a worker's helper threads wait too and would push the shares over 100 %.
    """
    runq = oncpu = span = 0
    switches = 0.0
    switched = count = 0
    for new in frame.procs:
        old = board.procs.get(new.pid)
        if not new.threads or old is None or old.start_ticks != new.start_ticks or new.t_ns <= old.t_ns:
            continue
        if new.run_delay_ns is None or old.run_delay_ns is None or new.oncpu_ns is None or old.oncpu_ns is None:
            continue
        count += 1
        span += new.t_ns - old.t_ns
        runq += new.run_delay_ns - old.run_delay_ns
        oncpu += new.oncpu_ns - old.oncpu_ns
        if new.vol is not None and old.vol is not None and new.invol is not None and old.invol is not None:
            switched += 1
            switches += (new.vol - old.vol + new.invol - old.invol) * 1e9 / (new.t_ns - old.t_ns)
    if count:
        history.put("runq.pct", 0, min(100.0, 100 * runq / span))
        history.put("offcpu.pct", 0, max(0.0, 100 - 100 * oncpu / span))
    if switched:
        history.put("switches.per_s", 0, switches)


def observe_shares(board: Board, frame: Frame, history: History) -> None:
    """The CPU that each process without states took since it was last read, if any; see `History.shares`."""
    for new in frame.procs:
        old = board.procs.get(new.pid)
        if old is None or old.start_ticks != new.start_ticks or new.t_ns <= old.t_ns or new.pid in history.states:
            continue
        took_ns = new.utime_ns + new.stime_ns - old.utime_ns - old.stime_ns
        since_ns = max(old.t_ns, new.t_ns - SHARE_NS) + ROUNDED_NS
        history.put_share(new.pid, min(8, ceil(8 * took_ns / (new.t_ns - old.t_ns) - NO_SHARE)), since_ns)


def observe_probes(board: Board, frame: Frame, history: History) -> None:
    """The 99th percentile of run-queue delays and of CUDA synchronize calls that ended in this tick, from the eBPF probes; subject 0."""
    probes = frame.probes
    if probes is None:
        return
    hot = {thread.tid for proc in board.procs.values() if proc.threads for thread in proc.threads}
    waits = [(board.threads.get(t.tid), t) for t in probes.threads if t.tid in hot]
    _put_p99("runq.p99_ms", [(old.hist if old else {}, new.hist) for old, new in waits if old], history)
    # The first reading of the probes holds calls of any age; a call that appears in a later one began after the reading before.
    calls = [(board.calls.get((c.pid, c.call)), c) for c in probes.calls if _SYNCHRONIZE in c.call and board.probed_ns]
    _put_p99("sync.p99_ms", [(old.hist if old else {}, new.hist) for old, new in calls], history)


def histogram(field_id: str, older: Board, newer: Board, pids: frozenset[int]) -> dict[int, int]:
    """Bucket (see `gputop.model.histogram`) -> number of waits that ended between two boards; empty for fields without a histogram.

    ``pids`` bounds the run-queue delays; synchronize calls are counted over all processes.
    """
    if field_id == "runq.p99_ms":
        threads = [thread for thread in newer.threads.values() if thread.pid in pids]
        return _added((older.threads[t.tid].hist if t.tid in older.threads else {}, t.hist) for t in threads)
    if field_id == "sync.p99_ms":
        calls = [(key, call) for key, call in newer.calls.items() if _SYNCHRONIZE in call.call]
        return _added((older.calls[key].hist if key in older.calls else {}, call.hist) for key, call in calls)
    return {}


def _put_p99(field_id: str, pairs: Iterable[tuple[dict[int, int], dict[int, int]]], history: History) -> None:
    slowest = quantile(_added(pairs), 0.99)
    if slowest is not None:
        history.put(field_id, 0, slowest / 1e6)


def _added(pairs: Iterable[tuple[dict[int, int], dict[int, int]]]) -> dict[int, int]:
    """Bucket -> counts that the newer histogram of each (older, newer) pair has more than the older one, summed."""
    added: dict[int, int] = {}
    for older, newer in pairs:
        for bucket, count in newer.items() - older.items():  # few of many buckets change
            fresh = count - older.get(bucket, 0)
            if fresh > 0:
                added[bucket] = added.get(bucket, 0) + fresh
    return added


def observe_memory(board: Board, frame: Frame, history: History) -> None:
    """Put the memory that trainers and workers hold together (GiB), once a second; subject 0."""
    if frame.host is not None and frame.host.mem_available_bytes is not None:
        held = [proc.anon_bytes - (proc.shared_bytes or 0) for proc in board.procs.values() if proc.anon_bytes is not None]
        if held:
            history.put(JOBS_MEMORY, 0, sum(held) / 2**30)


class ServerSeries:
    """The requests, tokens and latencies of each inference server, its models and engines together; subject: see `subject_of`.

    They have the window of `ServingTracks`, as the verdict has it, and its rounding. A screen puts them with each judgement, so that its
    lanes, its rows and its verdict are of one page; who does not judge observes frames.
    """

    def __init__(self) -> None:
        self._tracks = ServingTracks()
        self._put_ns: dict[int, int] = {}  # server -> time of the page that was put last

    def observe(self, board: Board, frame: Frame, history: History) -> None:
        """The observer for who does not judge."""
        if frame.servings:
            for pages in (board.servings, newest((*board.servings.values(), *frame.servings))):
                self._tracks.push(pages)
            self.put(self._tracks.now(), history)

    def put(self, found: Iterable[ServingNow], history: History) -> None:
        """Put what the servers' newest pages have, each page once."""
        servers: dict[int, list[ServingNow]] = {}
        for one in found:
            servers.setdefault(subject_of(one), []).append(one)
        for subject, models in servers.items():
            page_ns = max(one.t_ns for one in models)
            if page_ns == self._put_ns.get(subject):
                continue
            self._put_ns[subject] = page_ns
            for field_id, name, together, shown in _OF_MODELS:
                if (value := together(models, name)) is not None:
                    history.put(field_id, subject, shown(value))
        self._put_ns = {subject: self._put_ns[subject] for subject in servers}


_Together = Callable[[Iterable[ServingNow], str], "float | None"]
_OF_MODELS: tuple[tuple[str, str, _Together, Callable[[float], float]], ...] = (
    (TOKENS, "generated_tokens_per_s", total_of, whole), (WAITING, "waiting", total_of, float), (RUNNING, "running", total_of, float),
    (KV_USED, "kv_used_pct", worst_of, whole), (FIRST_TOKEN, "first_token_p99_s", worst_of, lambda seconds: whole(1000 * seconds)),
)  # fmt: skip
"""(series of a server, field of its models, how these are one, how it is rounded)"""


def unjudged() -> tuple[Observer, ...]:
    """All observers, for one stream that nobody judges."""
    return (*OBSERVERS, ServerSeries().observe)


Observer = Callable[[Board, Frame, History], None]
OBSERVERS: tuple[Observer, ...] = (
    observe_gpus, observe_host, observe_nics, observe_workers, observe_memory, observe_probes, observe_shares,
)  # fmt: skip
