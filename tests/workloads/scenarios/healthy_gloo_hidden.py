"""Two ranks sum 512 kB in eight buckets by gloo: at 100 Mbit/s the backward pass hides nearly all of it."""

from tests.workloads.ranks import Ranks, gradients, healthy

SCENARIO = healthy(Ranks(gradients(512 << 10, buckets=8), kernels_ms=120), mbit=100)
