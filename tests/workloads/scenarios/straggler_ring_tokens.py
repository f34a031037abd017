"""Two ranks swap 256 kB at sockets of their own; one then tokenizes its texts itself."""

from tests.workloads.ranks import Ranks, late_rank, ring, tokenizes

SCENARIO = late_rank(Ranks(ring(256 << 10), late=tokenizes(cpu_s=0.1)))
