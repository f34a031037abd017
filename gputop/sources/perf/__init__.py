"""Samples of trainers' main threads in CUDA's libraries while they run: for users without the right to load probes.

perf's task clock needs no privilege for one's own processes if `kernel.perf_event_paranoid` is 2 or less.

What it is worth (2026-11-28, the corpus and the kept recordings of an H200, 318 runs without eBPF): 303 verdicts are right with the samples
and 299 without. The four are one h2d-transfer of `hold-out` and 3 of the 7 sync-storms of `learn`, one of them on the H200, which become
main-thread-preprocessing, because a wait that spins looks like computing. They also check the rhythm of steps without eBPF.
While a trainer is sampled they cost the collector 5 ms of CPU a second (21 instead of 16, six paired runs of 8 s) and 0.5 MB; else nothing.
"""

from gputop.sources.perf.source import PerfSource, check

__all__ = ["PerfSource", "check"]
