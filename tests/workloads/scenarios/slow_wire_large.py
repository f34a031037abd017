"""Two ranks sum 8 MB by gloo, which 600 Mbit/s carry four times a second."""

from tests.workloads.ranks import Ranks, gradients, slow_wire

SCENARIO = slow_wire(Ranks(gradients(8 << 20)), mbit=600)
