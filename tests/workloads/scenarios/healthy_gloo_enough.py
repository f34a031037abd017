"""Two ranks sum 128 kB by gloo: 1 Gbit/s is as good as any network."""

from tests.workloads.ranks import Ranks, gradients, healthy

SCENARIO = healthy(Ranks(gradients(128 << 10), kernels_ms=50), mbit=1000)
