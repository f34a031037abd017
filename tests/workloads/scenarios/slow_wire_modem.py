"""Two ranks sum 128 kB by gloo, which 10 Mbit/s carry five times a second."""

from tests.workloads.ranks import Ranks, gradients, slow_wire

SCENARIO = slow_wire(Ranks(gradients(128 << 10)), mbit=10)
