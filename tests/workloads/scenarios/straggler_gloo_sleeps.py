"""Three ranks sum gradients by gloo; the last one then sleeps in each step, for its service limits its requests."""

from tests.workloads.ranks import Ranks, gradients, late_rank, sleeps

SCENARIO = late_rank(Ranks(gradients(1 << 20), count=3, late=sleeps(0.15)))
