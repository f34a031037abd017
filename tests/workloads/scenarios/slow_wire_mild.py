"""Two ranks sum 512 kB by gloo; 100 Mbit/s make each step twice as long."""

from tests.workloads.ranks import Ranks, gradients, slow_wire

SCENARIO = slow_wire(Ranks(gradients(512 << 10)), mbit=100)
