"""Two ranks sum 2 MB of gradients in each step, by gloo; then the network between them carries 100 Mbit/s."""

from tests.workloads.ranks import Ranks, gradients, slow_wire

SCENARIO = slow_wire(Ranks(gradients(2 << 20)), mbit=100)
