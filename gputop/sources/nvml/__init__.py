"""NVIDIA GPUs through NVML, met at its C interface; the only place that imports pynvml."""

from gputop.sources.nvml.source import NvmlSource

__all__ = ["NvmlSource"]
