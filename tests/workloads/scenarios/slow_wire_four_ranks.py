"""Four ranks sum 256 kB by gloo; then the network carries 40 Mbit/s."""

from tests.workloads.ranks import Ranks, gradients, slow_wire

SCENARIO = slow_wire(Ranks(gradients(256 << 10), count=4), mbit=40)
