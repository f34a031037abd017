"""Three ranks sum 1 MB in four buckets while the backward pass goes on; at 200 Mbit/s it hides only the first of them."""

from tests.workloads.ranks import Ranks, gradients, slow_wire

SCENARIO = slow_wire(Ranks(gradients(1 << 20, buckets=4), count=3), mbit=200)
