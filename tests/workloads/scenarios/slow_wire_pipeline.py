"""Four ranks hand their part of the weights round a ring, each by a thread that sends while the main thread receives; then the network
slows to 60 Mbit/s."""

from tests.workloads.ranks import Ranks, ring, slow_wire

SCENARIO = slow_wire(Ranks(ring(96 << 10, by_thread=True), count=4, kernels_ms=45), mbit=60)
