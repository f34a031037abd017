"""gputop, by its own Python: the verdict of the last seconds, and in the end that of the whole watch, as `gputop explain` prints it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import gputop
from gputop.findings.verdict import Culprit, Fix
from slowbench.adapter import answer, every, ready
from slowbench.vocabulary import FROM_GPUTOP, FROM_GPUTOP_CAUSE, UNKNOWN


def report(symptom: str | None, cause: str, culprits: Sequence[Culprit], fixes: Sequence[Fix]) -> None:
    """Print a verdict in neutral words, with its first fix that changes something."""
    fix = next((one for one in fixes if not one.look), Fix(""))
    words = FROM_GPUTOP.get(symptom or "", UNKNOWN), FROM_GPUTOP_CAUSE.get(cause, UNKNOWN)
    answer(*words, [one.pid for one in culprits], fix.text, fix.command)


def main() -> None:
    """Watch the machine, with eBPF unless ``--no-ebpf`` is given."""
    ebpf = "--no-ebpf" not in sys.argv
    with gputop.watch(ebpf=ebpf) as watching:
        ready(gputop.__version__, ["root"] if ebpf else [])
        for _ in every(0.5):
            report(watching.verdict.symptom, watching.verdict.cause, watching.verdict.culprits, watching.verdict.fixes)
        found = watching.explain()
        own = [one for one in found.incidents if one.cause == found.verdict.cause]
        worst = max(own, key=lambda one: one.gpu_lost_s, default=None)
        report(found.verdict.symptom, found.verdict.cause, worst.culprits if worst else (), worst.fixes if worst else ())


if __name__ == "__main__":
    main()
