"""Samples of trainers' main threads in CUDA's libraries while they run: for users without the right to load probes.

perf's task clock needs no privilege for one's own processes if `kernel.perf_event_paranoid` is 2 or less.
"""

from gputop.sources.perf.source import PerfSource, check

__all__ = ["PerfSource", "check"]
