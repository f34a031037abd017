"""Two ranks sum 256 kB by gloo, at 100 Mbit/s in 45 ms of each step; one of them is late by 200 ms besides."""

from tests.workloads.ranks import Ranks, gradients, late_rank, sleeps

SCENARIO = late_rank(Ranks(gradients(256 << 10), late=sleeps(0.2)), mbit=100)
