"""The GPUs under the names of NVIDIA's dcgm-exporter, for dashboards that exist: `--compat dcgm`.

Names, units and labels: https://github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv. Only what gputop measures too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gputop.metrics.registry import GAUGE, GPU, Metric, Sample
from gputop.metrics.totals import label
from gputop.model.board import Board

_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname")


class _DcgmField(NamedTuple):
    name: str
    field: str  # of `gputop.model.gpu.Gpu`
    help: str
    factor: float = 1.0


_MIB = 1 / (1 << 20)
_FIELDS = (
    _DcgmField("DCGM_FI_DEV_SM_CLOCK", "sm_clock_mhz", "SM clock frequency (in MHz)."),
    _DcgmField("DCGM_FI_DEV_MEM_CLOCK", "mem_clock_mhz", "Memory clock frequency (in MHz)."),
    _DcgmField("DCGM_FI_DEV_MEMORY_TEMP", "mem_temp_c", "Memory temperature (in C)."),
    _DcgmField("DCGM_FI_DEV_GPU_TEMP", "temp_c", "GPU temperature (in C)."),
    _DcgmField("DCGM_FI_DEV_POWER_USAGE", "power_w", "Power draw (in W)."),
    _DcgmField("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_mj", "Total energy consumption since boot (in mJ)."),
    _DcgmField("DCGM_FI_DEV_GPU_UTIL", "util_pct", "GPU utilization (in %)."),
    _DcgmField("DCGM_FI_DEV_MEM_COPY_UTIL", "mem_util_pct", "Memory utilization (in %)."),
    _DcgmField("DCGM_FI_DEV_ENC_UTIL", "enc_pct", "Encoder utilization (in %)."),
    _DcgmField("DCGM_FI_DEV_DEC_UTIL", "dec_pct", "Decoder utilization (in %)."),
    _DcgmField("DCGM_FI_DEV_FB_USED", "mem_used_bytes", "Framebuffer memory used (in MiB).", _MIB),
    _DcgmField("DCGM_FI_DEV_FB_RESERVED", "mem_reserved_bytes", "Framebuffer memory reserved (in MiB).", _MIB),
    _DcgmField("DCGM_FI_DEV_XID_ERRORS", "xid", "Value of the last XID error encountered."),
    _DcgmField("DCGM_FI_DEV_FAN_SPEED", "fan_pct", "Fan speed (in %)."),
    _DcgmField("DCGM_FI_DEV_PSTATE", "pstate", "Performance state."),
    _DcgmField("DCGM_FI_DEV_POWER_MGMT_LIMIT", "power_limit_w", "Power management limit (in W)."),
    _DcgmField("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gr_active_pct", "Ratio of time the graphics engine is active.", 0.01),
    _DcgmField("DCGM_FI_PROF_SM_ACTIVE", "sm_active_pct", "Ratio of cycles an SM has at least 1 warp assigned.", 0.01),
    _DcgmField("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active_pct", "Ratio of cycles the tensor pipe is active.", 0.01),
    _DcgmField("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active_pct", "Ratio of cycles the device memory is active.", 0.01),
)


class _Named(Metric, frozen=True):
    """A metric with a foreign name, such as DCGM's, without the prefix of gputop."""

    @property
    def full_name(self) -> str:
        return self.name

    @property
    def otel_name(self) -> str:
        return self.name


def dcgm(board: Board) -> Iterator[tuple[Metric, list[Sample]]]:
    """The families that have values."""
    own = {}
    for index, gpu in sorted(board.gpus.items()):
        bus = gpu.text("pci_bus_id")
        texts = str(index), gpu.text("uuid"), bus, f"nvidia{index}", gpu.text("name"), board.header.host
        own[index] = tuple(map(label, texts))
    for one in _FIELDS:
        shared = {index for index, gpu in board.gpus.items() if gpu.values.get("mem_shared") and one.field == "mem_used_bytes"}
        values = ((own[index], gpu.number(one.field)) for index, gpu in sorted(board.gpus.items()) if index not in shared)
        samples = [Sample(labels, value * one.factor) for labels, value in values if value is not None]
        if samples:
            yield _Named(one.name, GAUGE, "", _LABELS, GPU, one.help, lambda _: ()), samples
