"""The simulated GPU of `gputop demo`, in NVML's place: fills ``frame.gpus`` as NVML would, from work that was really booked.

The environment variable ``GPUTOP_SIMULATED`` names its memory: a file of 64-bit words that the demo's trainers write and the source reads,
mapped shared. The stream's header then has ``simulated``, and the screen shows SIM next to each such number. Fields that the demo does not
simulate are missing, with that reason.

    word 0..2    MAGIC, VERSION, number of devices
    word 3..6    the act of the demo: see `ACT`
    per device   DEVICE_WORDS words from HEAD on: those named below, then PROCS slots of pid, bytes, busy ns, then each of CALLS

Booked work is contiguous up to ``UNTIL``: by ``now`` the device has been busy for ``BUSY - max(0, UNTIL - now)``. Times are CLOCK_MONOTONIC
in ns. Only its trainer writes to a device.

The trainer calls a simulated CUDA driver, a real library with libcuda's names (gputop/data/cuda), so that gputop's uprobes measure its
calls like any other's. Where no probes run, the trainer's own counts are shown in their place.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from threading import Event, Thread
from time import monotonic_ns

from msgspec import Struct

from gputop.model import histogram
from gputop.model.frame import SECOND_NS, CudaCall, Frame, Gpu, GpuProc, LaunchRate, Probes, SourceState
from gputop.sources import Beat, Settings, Unavailable

MAGIC, VERSION = 0x67_70_75_74_6F_70_44_31, 2
HEAD, PROCS = 8, 8  # words before the first device, slots for processes
BUSY, UNTIL, SM_BUSY, SM_PPM, RX, TX, LAUNCHES, FIRST_PROC = range(8)
"""Words of a device: booked busy ns; end of the booked work; busy ns times share of SMs; that share now (ppm); bytes in, out; kernels."""
CALLS = ("cuStreamSynchronize", "cuMemcpyHtoD")  # as the probes name them, without version suffix
FIRST_CALL = FIRST_PROC + 3 * PROCS
BEGAN, COUNT, TOTAL, BYTES, HIST = range(5)
"""Words of a call: when the one under way began, or 0; calls; their ns; bytes; then for each bucket the calls, and for each their ns."""
CALL_WORDS = HIST + 2 * histogram.COUNT
DEVICE_WORDS = FIRST_CALL + len(CALLS) * CALL_WORDS
ACT, ACT_SINCE, ACT_UNTIL, ACT_HOLD = range(3, HEAD - 1)
"""Words: the act; when it began and will end; until when the screen wants it to last."""
STEADY, CALM, TROUBLE, OVER, END = range(5)  # acts: nothing changes; the first calm, the trouble, calm again; the demo has ended
MOST_DEVICES = 8
GROUP = "gputop-demo-"  # name of the demo's control group, before the pid of its stage, which starts the trainers
SIZE = 8 * (HEAD + MOST_DEVICES * DEVICE_WORDS)
VARIABLE = "GPUTOP_SIMULATED"  # environment variable: path of the memory
WINDOW_NS = 166_666_667  # ns over which utilization is a mean, as in NVIDIA's driver
_LIMIT_W, _IDLE_W = 700.0, 90.0  # as an H200
_SM_MHZ, _IDLE_MHZ, _MEM_MHZ = 1980, 345, 3201
_MEMORY_BYTES = 141 << 30
_IDLE_C, _BUSY_C = 34.0, 30.0  # °C idle, and what full work adds
_IDLE_BIT = 0x1  # of NVML's clocks-event reasons
_NOT_SIMULATED = (
    "mem_util_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "mem_temp_c", "fan_pct", "enc_pct", "dec_pct",
    "nvlink_tx_bytes", "nvlink_rx_bytes", "ecc_corrected", "ecc_uncorrected", "retired_pages", "remapped_rows",
    "remap_pending", "remap_failed", "pci_bus_id", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "nvlink_links", "compute_mode", "mig",
    "nvml_ns", "nvml_calls", "mem_shared", "needs_reset", "pcie_replays", "pcie_recoveries", "pcie_corrected_errors", "slowed_power_ns",
    "slowed_sync_boost_ns", "slowed_heat_ns", "slowed_hw_heat_ns", "slowed_brake_ns", "power_smoothing", "recovery_action", "c2c_links",
    "nvlink_replays", "nvlink_recoveries", "nvlink_crc_errors", "nvlinks", "c2c_tx_bytes", "c2c_rx_bytes", "c2c_link_bytes_per_s",
    "numa_node", "near_cpus", "fabric_state", "fabric_health",
)  # fmt: skip


class NotAGpu(Exception):
    """The file was not made by `create`."""


class DeviceTotals(Struct, frozen=True):
    """A device's counters at ``t_ns``, without work that is booked for later."""

    t_ns: int
    busy_ns: int
    sm_busy_ns: int
    rx_bytes: int
    tx_bytes: int


def create(devices: int) -> int:
    """Create the memory, a file without a name that leaves nothing behind; returns its descriptor."""
    fd = os.memfd_create("gputop-simulated-gpu")
    os.ftruncate(fd, SIZE)
    words = attach(fd)
    words[0:3] = memoryview(bytearray(24)).cast("Q")
    words[1], words[2] = VERSION, devices
    words[0] = MAGIC
    return fd


def attach(fd: int, writable: bool = True) -> memoryview:
    """The words of an open file. Raises NotAGpu if the file is too short, OSError if it cannot be mapped."""
    if os.fstat(fd).st_size < SIZE:
        raise NotAGpu("too short")
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return memoryview(mmap.mmap(fd, SIZE, mmap.MAP_SHARED, access)).cast("Q")


def open_path(path: str, writable: bool = False) -> memoryview:
    """The words of the file at ``path``. Raises NotAGpu or OSError."""
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        words = attach(fd, writable)
    finally:
        os.close(fd)
    if words[0] != MAGIC or words[1] != VERSION or not 0 < words[2] <= MOST_DEVICES:
        raise NotAGpu("made by another version of gputop")
    return words


def base(device: int) -> int:
    """Index of the first word of a device."""
    return HEAD + device * DEVICE_WORDS


def totals(words: memoryview, device: int, now_ns: int) -> DeviceTotals:
    """The device's counters at ``now_ns``. A reading during a booking is repeated."""
    at = base(device)
    while True:
        busy, until, weighted, ppm = words[at : at + 4]
        if words[at + BUSY] == busy and words[at + UNTIL] == until:
            break
    ahead = max(0, until - now_ns)
    return DeviceTotals(now_ns, max(0, busy - ahead), max(0, weighted - ahead * ppm // 1_000_000), words[at + RX], words[at + TX])


def count_call(words: memoryview, first: int, began_ns: int, count: int = 0) -> None:
    """Count a call that began at ``began_ns`` and has just returned; its words begin at ``first``; ``count``: bytes."""
    length = monotonic_ns() - began_ns
    bucket = first + HIST + histogram.bucket_of(length) - histogram.FIRST
    words[first + BEGAN] = 0
    words[bucket + histogram.COUNT] += length
    words[bucket] += 1
    words[first + BYTES] += count
    words[first + TOTAL] += length
    words[first + COUNT] += 1


def procs(words: memoryview, device: int) -> list[tuple[int, int, int]]:
    """(pid, memory bytes, busy ns) of each process on the device."""
    first = base(device) + FIRST_PROC
    slots = (tuple(words[first + 3 * slot : first + 3 * slot + 3]) for slot in range(PROCS))
    return [(pid, held, busy) for pid, held, busy in slots if pid]


class SimulatedSource:
    """The source. ``pids``: processes with a context on one of the GPUs."""

    name = "simulated"

    def __init__(self, settings: Settings) -> None:
        self._wanted = settings.gpus
        self._devices: list[_SimulatedDevice] = []
        self._over = Event()
        self._is_probed = False  # whether the probes count the calls

    @property
    def pids(self) -> frozenset[int]:
        """Processes with a context on one of the GPUs."""
        return frozenset(proc.pid for device in self._devices for proc in device.procs())

    def open(self) -> SourceState:
        """Map the memory. Raises Unavailable if its demo is over."""
        try:
            words = open_path(os.environ.get(VARIABLE, ""))
        except (OSError, NotAGpu) as error:
            raise Unavailable(f"the demo's GPU is not there: {error}", "start gputop demo") from None
        self._devices = [_SimulatedDevice(words, index) for index in range(words[2]) if self._wanted is None or index in self._wanted]
        self._over = Event()
        Thread(target=self._close_windows, args=(self._over,), name="simulated-gpu", daemon=True).start()
        return SourceState(self.name, "ok", detail={"gpus": str(len(self._devices))})

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add a sample of each GPU; once a second, and in key frames, also its slow readings."""
        launches: list[LaunchRate] = []
        for device in self._devices:
            frame.gpus.append(device.often(beat.t_ns))
            if beat.key or device.slow_due_ns <= beat.t_ns:
                device.slow_due_ns = beat.t_ns + SECOND_NS
                frame.gpus.append(device.seldom(beat.t_ns))
                launches += device.launches(beat.t_ns)
        self._is_probed |= frame.probes is not None
        if not self._is_probed and not beat.loading:
            calls = [call for device in self._devices for call in device.calls(beat.key)]
            if calls or launches:
                frame.probes = Probes(monotonic_ns(), calls=calls, launches=launches)

    def close(self) -> None:
        """Stop measuring utilization."""
        self._over.set()

    def _close_windows(self, over: Event) -> None:
        """Close the windows on time, as a driver does, whoever reads them."""
        due_ns = monotonic_ns() + WINDOW_NS
        while not over.wait(max(0.0, (due_ns - monotonic_ns()) / 1e9)):
            for device in self._devices:
                device.close_window()
            due_ns = max(due_ns + WINDOW_NS, monotonic_ns())


class _SimulatedDevice:
    """One simulated GPU: its booked work as a driver would report it."""

    def __init__(self, words: memoryview, index: int) -> None:
        self.index = index
        self.slow_due_ns = 0
        self._words = words
        now = totals(words, index, monotonic_ns())
        self._window, self._sample = now, now
        self._recent = deque([now], maxlen=int(SECOND_NS / WINDOW_NS))
        self._utilization = (0.0, now.t_ns)
        self._proc_busy: dict[int, tuple[int, int]] = {}
        self._called: dict[int, list[int]] = {}  # first word of a call -> its words when they were last sent
        self._launched = (0, 0)

    def close_window(self) -> None:
        """Compute the utilization since the last window."""
        now = totals(self._words, self.index, monotonic_ns())
        self._utilization = round(100 * _share(now.busy_ns - self._window.busy_ns, now.t_ns - self._window.t_ns)) + 0.0, now.t_ns
        self._window = now
        self._recent.append(now)

    def often(self, t_ns: int) -> Gpu:
        """The readings of each tick: utilization, power, SM activity, clocks, memory, PCIe."""
        now, last = totals(self._words, self.index, monotonic_ns()), self._sample
        self._sample = now
        sm_share = _share(now.sm_busy_ns - last.sm_busy_ns, now.t_ns - last.t_ns)
        idle = now.busy_ns == last.busy_ns
        util, util_t_ns = self._utilization
        return Gpu(
            self.index, t_ns, util_pct=util, util_t_ns=util_t_ns, power_w=round(_IDLE_W + (_LIMIT_W - _IDLE_W) * sm_share, 1),
            power_instant=True, energy_mj=int(now.t_ns * _IDLE_W / 1e6 + now.sm_busy_ns * (_LIMIT_W - _IDLE_W) / 1e6),
            gr_active_pct=round(100 * _share(now.busy_ns - last.busy_ns, now.t_ns - last.t_ns), 1), sm_active_pct=round(100 * sm_share, 1),
            sm_clock_mhz=_IDLE_MHZ if idle else _SM_MHZ, mem_clock_mhz=_MEM_MHZ,
            throttle_mask=_IDLE_BIT if idle else 0, mem_used_bytes=sum(proc.mem_bytes or 0 for proc in self.procs()),
            mem_total_bytes=_MEMORY_BYTES, mem_reserved_bytes=0, pcie_rx_bytes=now.rx_bytes, pcie_tx_bytes=now.tx_bytes,
        )  # fmt: skip

    def seldom(self, t_ns: int) -> Gpu:
        """The readings of each second: identity, limits, temperature and processes."""
        oldest = self._recent[0]
        warmth = _share(self._window.sm_busy_ns - oldest.sm_busy_ns, self._window.t_ns - oldest.t_ns)
        return Gpu(
            self.index, t_ns, name="simulated GPU", uuid=f"GPU-simulated-{self.index}", architecture="simulated", lost=False,
            temp_c=round(_IDLE_C + _BUSY_C * warmth), power_limit_w=_LIMIT_W, power_limit_default_w=_LIMIT_W, power_limit_max_w=_LIMIT_W,
            sm_clock_max_mhz=_SM_MHZ, mem_clock_max_mhz=_MEM_MHZ, pstate=0, pcie_gen=5, pcie_gen_max=5, pcie_width=16, pcie_width_max=16,
            mig_mode=False, procs=self._used_by(t_ns), missing=dict.fromkeys(_NOT_SIMULATED, "not simulated"),
        )  # fmt: skip

    def calls(self, everything: bool) -> list[CudaCall]:
        """The calls that changed since the last time, or all, as the trainer counts them."""
        at, told = base(self.index), list[CudaCall]()
        pid = self._words[at + FIRST_PROC]
        for first, name in zip(range(at + FIRST_CALL, at + DEVICE_WORDS, CALL_WORDS), CALLS, strict=True) if pid else ():
            words = self._words[first : first + CALL_WORDS].tolist()
            before = self._called.get(first, [0] * CALL_WORDS)
            if everything or words[BEGAN] or words[COUNT] != before[COUNT]:
                self._called[first] = words
                told.append(_call(pid, name, words, before))
        return told

    def launches(self, t_ns: int) -> list[LaunchRate]:
        """Launches per second since the last time."""
        count, pid = self._words[base(self.index) + LAUNCHES], self._words[base(self.index) + FIRST_PROC]
        (before, since_ns), self._launched = self._launched, (count, t_ns)
        return [LaunchRate(pid, round((count - before) * SECOND_NS / (t_ns - since_ns), 1))] if pid and 0 < since_ns < t_ns else []

    def procs(self) -> list[GpuProc]:
        """The processes with a context, and their memory."""
        return [GpuProc(pid, mem_bytes=held) for pid, held, _ in procs(self._words, self.index)]

    def _used_by(self, t_ns: int) -> list[GpuProc]:
        """The processes, with their kernels' share of the time since the last call."""
        now = {pid: (t_ns, busy) for pid, _, busy in procs(self._words, self.index)}
        known, self._proc_busy = self._proc_busy, now
        used = {pid: _share(busy - known[pid][1], t_ns - known[pid][0]) for pid, (_, busy) in now.items() if pid in known}
        return [GpuProc(proc.pid, proc.kind, proc.mem_bytes, _percent(used.get(proc.pid))) for proc in self.procs()]


def _call(pid: int, name: str, words: list[int], before: list[int]) -> CudaCall:
    """A call's sample. The longest one since ``before`` is known to a fifth: as the mean of its bucket."""
    counts, sums = words[HIST : HIST + histogram.COUNT], words[HIST + histogram.COUNT :]
    hist = {histogram.FIRST + i: count for i, count in enumerate(counts) if count}
    grown = max((i for i, count in enumerate(counts) if count > before[HIST + i]), default=None)
    longest = 0
    if grown is not None:
        longest = (sums[grown] - before[HIST + histogram.COUNT + grown]) // (counts[grown] - before[HIST + grown])
    return CudaCall(
        pid=pid, call=name, count=words[COUNT], total_ns=words[TOTAL], max_ns=longest, hist=hist,
        bytes=words[BYTES] if "Memcpy" in name else None, sums={histogram.FIRST + i: ns for i, ns in enumerate(sums) if ns},
        inflight_ns=max(0, monotonic_ns() - words[BEGAN]) if words[BEGAN] else 0,
    )  # fmt: skip


def _share(part_ns: int, whole_ns: int) -> float:
    return min(1.0, max(0.0, part_ns / whole_ns)) if whole_ns > 0 else 0.0


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
