"""Three ranks read their samples themselves and sum gradients by gloo; then the disk of the last one gives 12 MB/s."""

from tests.workloads.ranks import Ranks, gradients, late_by_disk, reads

SCENARIO = late_by_disk(Ranks(gradients(512 << 10), count=3, always=reads(2 << 20)), bytes_per_s=12 << 20)
