"""NVIDIA GPUs through NVML.

* `source`: starts NVML and hands samples to the beat; * `poller`: the threads that poll the GPUs; * `gpu`: what one GPU is asked while it
is there; * `groups`: when a field is read, by which call, and why it is missing; * `fast`, `slow`: the fields of every poll and of every
second; * `gpm`, `mig`, `procs`: SM activity, MIG instances, processes; * `binding`: NVML's library; * `driver`: calls and what their
failures mean; * `numbers`: which numbers are believed.
"""

from gputop.sources.nvml.source import NvmlSource

__all__ = ["NvmlSource"]
