"""MIG devices as GPUs of their own. Clocks, limits and the link are those of the GPU they are parts of; its power is no measure of one."""

from __future__ import annotations

from collections.abc import Iterator

from gputop.model.board import GpuBoard
from gputop.model.frame import MigInstance

_OWN = ("util_pct", "sm_active_pct")
_OF_ALL = ("gr_active_pct", "power_w", "power_limit_w", "mig", "mig_mode")


def parts(gpu: GpuBoard) -> Iterator[tuple[int, GpuBoard]]:
    """GPU instance -> what is known of it; nothing of a GPU that is not split."""
    known: set[int] = set()
    for one in gpu.instances:
        if one.gpu_instance is not None and one.gpu_instance not in known:
            known.add(one.gpu_instance)  # several compute instances of it share its SMs, and GPM tells of all together
            yield one.gpu_instance, _part(gpu, one)


def _part(gpu: GpuBoard, one: MigInstance) -> GpuBoard:
    part = gpu.copy()
    for name in (*_OWN, *_OF_ALL):
        part.values.pop(name, None)
    for name in _OWN:
        value = getattr(one, name)
        if value is not None:
            part.values[name], part.read_ns[name] = value, gpu.read_ns["mig"]
            part.missing.pop(name, None)
        else:
            part.missing.setdefault(name, one.missing.get(name, ""))
    part.values["procs"] = [proc for proc in gpu.procs if proc.gpu_instance == one.gpu_instance]
    part.values.pop("held_by", None)
    return part
