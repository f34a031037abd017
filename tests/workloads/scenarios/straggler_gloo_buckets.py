"""Three ranks sum gradients in four buckets by gloo; the last one then tokenizes its texts itself."""

from tests.workloads.ranks import Ranks, gradients, late_rank, tokenizes

SCENARIO = late_rank(Ranks(gradients(1 << 20, buckets=4), count=3, late=tokenizes(cpu_s=0.09)))
