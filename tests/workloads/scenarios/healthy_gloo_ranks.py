"""Three ranks sum gradients by gloo, on a network that carries them in a small part of the step."""

from tests.workloads.ranks import Ranks, gradients, healthy

SCENARIO = healthy(Ranks(gradients(512 << 10), count=3, kernels_ms=60))
