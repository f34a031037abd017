"""Four ranks hand 64 kB round a ring of sockets; the last one then sleeps in each step."""

from tests.workloads.ranks import Ranks, late_rank, ring, sleeps

SCENARIO = late_rank(Ranks(ring(64 << 10, by_thread=True), count=4, late=sleeps(0.12)))
