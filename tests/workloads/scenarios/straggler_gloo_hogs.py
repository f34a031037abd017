"""Two ranks sum gradients by gloo, each bound to a CPU; then other programs come to the CPU of the second one."""

from tests.workloads.ranks import Ranks, gradients, late_by_hogs, tokenizes

SCENARIO = late_by_hogs(
    Ranks(gradients(512 << 10), always=tokenizes(cpu_s=0.015)), ("bwa", "samtools", "minimap2", "pigz", "blastn", "bcftools", "fastqc")
)
