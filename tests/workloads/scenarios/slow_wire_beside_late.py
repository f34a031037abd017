"""Two ranks sum 2 MB by gloo, at 100 Mbit/s in 340 ms of each step; one of them is late by 40 ms besides."""

from tests.workloads.ranks import Ranks, gradients, sleeps, slow_wire

SCENARIO = slow_wire(Ranks(gradients(2 << 20), late=sleeps(0.04)), mbit=100)
