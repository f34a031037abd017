"""Four ranks hand 64 kB round a ring of sockets, on a network that carries them in a small part of the step."""

from tests.workloads.ranks import Ranks, healthy, ring

SCENARIO = healthy(Ranks(ring(64 << 10), count=4, kernels_ms=80))
