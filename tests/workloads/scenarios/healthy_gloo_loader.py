"""Three ranks with a DataLoader each sum 256 kB by gloo."""

from tests.workloads.ranks import Ranks, gradients, healthy

SCENARIO = healthy(Ranks(gradients(256 << 10), count=3, kernels_ms=80, samples_ms=(0.5, 0.5)))
