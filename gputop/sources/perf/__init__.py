"""Where the main threads of trainers are, in CUDA's libraries, while they run: for who may not load probes.

perf's task clock is the kernel's own, and may be read of one's own processes where `kernel.perf_event_paranoid` is 2 or less.
"""

from gputop.sources.perf.source import PerfSource, check

__all__ = ["PerfSource", "check"]
