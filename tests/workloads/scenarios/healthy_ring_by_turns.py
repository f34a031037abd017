"""Three ranks hand 64 kB round a ring of sockets; one after the other has a few milliseconds more to do."""

from tests.workloads.ranks import Ranks, by_turns, healthy, ring, tokenizes

SCENARIO = healthy(Ranks(ring(64 << 10, by_thread=True), count=3, kernels_ms=90, always=by_turns(tokenizes(cpu_s=0.005), 3)))
