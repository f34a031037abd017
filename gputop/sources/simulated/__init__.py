"""The simulated GPU of `gputop demo`, in NVML's place: fills ``frame.gpus`` as NVML would, from work that was really booked.

Only where the environment variable ``GPUTOP_SIMULATED`` names the file (`layout`). The stream's header then says ``simulated``,
and so does the screen beside every such number. What the demo does not simulate is missing, with that reason.
"""

from __future__ import annotations

import os
from collections import deque
from threading import Event, Thread
from time import monotonic_ns

from gputop.model.frame import SECOND_NS, Frame, Gpu, GpuProc, SourceState
from gputop.sources import Beat, Settings, Unavailable
from gputop.sources.simulated import layout

VARIABLE = "GPUTOP_SIMULATED"
WINDOW_NS = 166_666_667
"""The driver's utilization is that of the last sixth of a second."""
_LIMIT_W, _IDLE_W = 700.0, 90.0
_SM_MHZ, _IDLE_MHZ, _MEM_MHZ = 1980, 345, 3201
_MEMORY_BYTES = 141 << 30
_IDLE_C, _BUSY_C = 34.0, 30.0
_IDLE_BIT = 0x1
_NOT_SIMULATED = (
    "mem_util_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "mem_temp_c", "fan_pct", "enc_pct", "dec_pct",
    "nvlink_tx_bytes", "nvlink_rx_bytes", "ecc_corrected", "ecc_uncorrected", "retired_pages", "remapped_rows",
    "remap_pending", "remap_failed",
)  # fmt: skip


class SimulatedSource:
    """Reads the file that ``GPUTOP_SIMULATED`` names; ``pids`` are the processes with work on it."""

    name = "simulated"

    def __init__(self, settings: Settings) -> None:
        self._wanted = settings.gpus
        self._devices: list[_Device] = []
        self._over = Event()

    @property
    def pids(self) -> frozenset[int]:
        """Processes with a context on one of the GPUs."""
        return frozenset(proc.pid for device in self._devices for proc in device.procs())

    def open(self) -> SourceState:
        """Raises Unavailable where the demo that made the file is over."""
        try:
            words = layout.open_path(os.environ.get(VARIABLE, ""))
        except (OSError, layout.NotAGpu) as error:
            raise Unavailable(f"the demo's GPU is not there: {error}", "start gputop demo") from None
        self._devices = [_Device(words, index) for index in range(words[2]) if self._wanted is None or index in self._wanted]
        self._over = Event()
        Thread(target=self._close_windows, args=(self._over,), name="simulated-gpu", daemon=True).start()
        return SourceState(self.name, "ok", detail={"gpus": str(len(self._devices))})

    def read(self, beat: Beat, frame: Frame) -> None:
        """Add a sample of each GPU; once a second and in key frames what NVML is asked seldom."""
        for device in self._devices:
            frame.gpus.append(device.often(beat.t_ns))
            if beat.key or device.slow_due_ns <= beat.t_ns:
                device.slow_due_ns = beat.t_ns + SECOND_NS
                frame.gpus.append(device.seldom(beat.t_ns))

    def close(self) -> None:
        """Stop measuring utilization."""
        self._over.set()

    def _close_windows(self, over: Event) -> None:
        """The driver's own clock: utilization does not wait for whoever reads it."""
        due_ns = monotonic_ns() + WINDOW_NS
        while not over.wait(max(0.0, (due_ns - monotonic_ns()) / 1e9)):
            for device in self._devices:
                device.close_window()
            due_ns = max(due_ns + WINDOW_NS, monotonic_ns())


class _Device:
    """One simulated GPU: what was booked on it, as a driver would report it."""

    def __init__(self, words: memoryview, index: int) -> None:
        self.index = index
        self.slow_due_ns = 0
        self._words = words
        now = layout.totals(words, index, monotonic_ns())
        self._window, self._sample = now, now
        self._recent = deque([now], maxlen=int(SECOND_NS / WINDOW_NS))
        self._utilization = (0.0, now.t_ns)
        self._proc_busy: dict[int, tuple[int, int]] = {}

    def close_window(self) -> None:
        """Work out utilization over the time since the last window."""
        now = layout.totals(self._words, self.index, monotonic_ns())
        self._utilization = round(100 * _share(now.busy_ns - self._window.busy_ns, now.t_ns - self._window.t_ns)) + 0.0, now.t_ns
        self._window = now
        self._recent.append(now)

    def often(self, t_ns: int) -> Gpu:
        """Every tick: utilization, power, SM activity, clocks, memory, PCIe."""
        now, last = layout.totals(self._words, self.index, monotonic_ns()), self._sample
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
        """Once a second: identity, limits, temperature and processes."""
        oldest = self._recent[0]
        warmth = _share(self._window.sm_busy_ns - oldest.sm_busy_ns, self._window.t_ns - oldest.t_ns)
        return Gpu(
            self.index, t_ns, name="simulated GPU", uuid=f"GPU-simulated-{self.index}", architecture="simulated", lost=False,
            temp_c=round(_IDLE_C + _BUSY_C * warmth), power_limit_w=_LIMIT_W, power_limit_default_w=_LIMIT_W, power_limit_max_w=_LIMIT_W,
            sm_clock_max_mhz=_SM_MHZ, mem_clock_max_mhz=_MEM_MHZ, pstate=0, pcie_gen=5, pcie_gen_max=5, pcie_width=16, pcie_width_max=16,
            mig_mode=False, procs=self._used_by(t_ns), missing=dict.fromkeys(_NOT_SIMULATED, "not simulated"),
        )  # fmt: skip

    def procs(self) -> list[GpuProc]:
        """Who has a context, with the memory they hold."""
        return [GpuProc(pid, mem_bytes=held) for pid, held, _ in layout.procs(self._words, self.index)]

    def _used_by(self, t_ns: int) -> list[GpuProc]:
        """The processes with the share of the time since the last call that their kernels took."""
        now = {pid: (t_ns, busy) for pid, _, busy in layout.procs(self._words, self.index)}
        known, self._proc_busy = self._proc_busy, now
        used = {pid: _share(busy - known[pid][1], t_ns - known[pid][0]) for pid, (_, busy) in now.items() if pid in known}
        return [GpuProc(proc.pid, proc.kind, proc.mem_bytes, _percent(used.get(proc.pid))) for proc in self.procs()]


def _share(part_ns: int, whole_ns: int) -> float:
    return min(1.0, max(0.0, part_ns / whole_ns)) if whole_ns > 0 else 0.0


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)
