"""Two ranks swap 256 kB at sockets of their own, in their main threads; then the network carries 30 Mbit/s."""

from tests.workloads.ranks import Ranks, ring, slow_wire

SCENARIO = slow_wire(Ranks(ring(256 << 10)), mbit=30)
