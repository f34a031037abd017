"""Three ranks with a DataLoader each sum gradients by gloo; then the samples of the last one take thirty times as long."""

from tests.workloads.ranks import Ranks, gradients, late_rank

SCENARIO = late_rank(Ranks(gradients(512 << 10), count=3, samples_ms=(0.5, 15.0)))
