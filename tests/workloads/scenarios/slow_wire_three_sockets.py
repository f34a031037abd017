"""Three ranks hand 128 kB round a ring of sockets in their main threads; then the network carries 50 Mbit/s."""

from tests.workloads.ranks import Ranks, ring, slow_wire

SCENARIO = slow_wire(Ranks(ring(128 << 10), count=3), mbit=50)
