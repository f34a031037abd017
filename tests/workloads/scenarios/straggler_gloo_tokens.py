"""Two ranks sum gradients by gloo on a good network; one then tokenizes its texts itself, and the other waits in the all-reduce."""

from tests.workloads.ranks import Ranks, gradients, late_rank, tokenizes

SCENARIO = late_rank(Ranks(gradients(2 << 20), late=tokenizes(cpu_s=0.08)))
