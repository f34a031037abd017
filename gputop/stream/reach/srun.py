"""Slurm's srun: gputop runs as a step on a node of a running job, next to the job's own steps. Needs no ssh to the nodes."""

from __future__ import annotations

import os
import re

from gputop.stream.reach import asked
from gputop.stream.reach.hosts import check, expand
from gputop.system.errors import UserError

LINES = True  # its steps write line by line, and a user's --label cuts long lines
_JOB = re.compile(r"\d+(?:_\d+|\+\d+)?")  # also of an array, and of a heterogeneous job


def argv(host: str, within: str, words: tuple[str, ...]) -> list[str]:
    """``within`` is the job. ``--overlap``: the step shares what the job's other steps have, their GPUs too."""
    check(host)
    step = ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--unbuffered", "--quiet"]
    return ["srun", f"--jobid={within}", *step, "gputop", *words]


def number_of(job: str) -> str:
    """Number of a job; for an empty text that of the job in which this process runs. UserError if it is no number."""
    job = job or os.environ.get("SLURM_JOB_ID", "")
    if not _JOB.fullmatch(job):
        raise UserError(f"--job {job[:60]!r}: no number of a job" if job else "--job needs a number outside of a job", code=2)
    return job


def nodes(job: str) -> list[str]:
    """The nodes of a job. UserError if there is no such job, or it does not run."""
    listed = asked(["squeue", "--noheader", f"--jobs={job}", "--states=RUNNING", "--format=%N"])
    if not (text := ",".join(listed.split())):
        raise UserError(f"job {job} does not run: see squeue --jobs={job}")
    return expand(text)
