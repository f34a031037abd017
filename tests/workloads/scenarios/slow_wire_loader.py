"""Two ranks with a DataLoader each sum 1 MB by gloo; then the network carries 60 Mbit/s."""

from tests.workloads.ranks import Ranks, gradients, slow_wire

SCENARIO = slow_wire(Ranks(gradients(1 << 20), samples_ms=(0.5, 0.5)), mbit=60)
