"""A training that ends looks like trouble for a moment: its workers are gone, its GPU rests, its main thread takes the interpreter down."""

from __future__ import annotations

from gputop.diagnosis.model import LOOKING
from gputop.diagnosis.symptoms import Standing

LEAVES_NS = 2_000_000_000  # so long after its workers are gone nothing is said of a trainer that does not work its GPU
NOTHING = 0.05  # utilization of a GPU that rests


def leaving(one: Standing, staffed_ns: int) -> Standing:
    """How a job stands that is in trouble since its workers were gone, last seen at ``staffed_ns``: an end, the next epoch and an
    evaluation begin like that, and the window still tells of what was before. All others stand as they do."""
    job, facts = one.job, one.facts
    lately = facts.t_ns - staffed_ns < LEAVES_NS and not (job.workers or job.births)
    if not (lately and one.troubled and all((gpu.util_now or 0.0) < NOTHING for gpu in job.gpus)):
        return one
    headline = f"{job.trainer.role.label} ({job.trainer.pid}) has let its workers go: it ends, or turns to something else"
    return Standing(job, facts, LOOKING, headline=headline, leaves=True)
