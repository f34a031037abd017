"""Container, Slurm job and secret variables of a process, from its cgroup, mounts and environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gputop.model.identity import identity_in_mounts, identity_in_paths

HIDDEN = "(hidden)"
VALUE_CHARS = 2000  # characters of one variable shown; a choice
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|COOKIE|PRIVATE|SIGNATURE|WEBHOOK|CONNECTION_?STRING|SESSION_?ID"
    r"|(^|_)(PASS|DSN)(_|$)|_PWD$|KEY(S|_|$)",
    re.IGNORECASE,
)  # names of variables with hidden values. PWD, OLDPWD and GIT_AUTHOR_NAME are shown.
_IN_URL = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:@]*:(?!\d+/)[^\s@]+)(?=@)")
_IN_TEXT = re.compile(
    r"(?i)((?:pass(?:word|wd|phrase)?|pwd|token|secret|credentials?|cookie|(?:api|access|secret|account|private)[-_]?key|signature)"
    r"['\"]?\s*[=:]\s*|\b(?:bearer|basic)\s+)(?:\"[^\"]*\"|'[^']*'|[^\s&;,]+)"
)
_TOKENS = re.compile(
    r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AKIA|ASIA|eyJ|npm_|pypi-|AIza|ya29\.)[\w.-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)  # tokens of GitHub, GitLab, Hugging Face, OpenAI, Slack, AWS, npm, PyPI and Google, a JWT, a PEM key

_SLURM = {
    "job": ("SLURM_JOB_ID", "SLURM_JOBID"), "array": ("SLURM_ARRAY_JOB_ID",), "array task": ("SLURM_ARRAY_TASK_ID",),
    "step": ("SLURM_STEP_ID", "SLURM_STEPID"), "rank": ("SLURM_PROCID",), "ranks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "local rank": ("SLURM_LOCALID",), "nodes": ("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "node": ("SLURMD_NODENAME",),
    "name": ("SLURM_JOB_NAME",), "partition": ("SLURM_JOB_PARTITION",),
}  # fmt: skip
"""Fact -> the variables that hold it, the better one first."""
_SLURM_CHARS = 200  # characters of a value


class Container(Struct, frozen=True):
    """The container around a process."""

    runtime: str
    id: str = ""
    pod: str = ""  # kubernetes' id of the pod


def container_of(cgroups: Sequence[str], roots: Sequence[str], environment: Mapping[str, str]) -> Container | None:
    """Container of a process with these cgroup paths, roots of mounts (mountinfo field 4) and environment; None if they name none."""
    told, mounted = identity_in_paths(*cgroups), identity_in_mounts(roots)
    pod = told.pod_uid or mounted.pod_uid
    for one in (told, mounted):
        if one.container_id:
            return Container(one.runtime or ("Kubernetes" if pod else "unknown runtime"), one.container_id, pod)
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if name in environment:
            return Container("Apptainer", environment[name][:_SLURM_CHARS], pod)
    if pod or "KUBERNETES_SERVICE_HOST" in environment:
        return Container("Kubernetes", "", pod)
    return Container(environment["container"][:_SLURM_CHARS]) if environment.get("container") else None


def slurm_of(cgroups: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Facts of `_SLURM`, from the cgroup if it has the job, else from the environment; empty outside Slurm."""
    path = identity_in_paths(*cgroups)
    told = {"job": path.slurm_job, "step": path.slurm_step, "task": path.slurm_task} if path.slurm_job else {}
    told = {fact: value for fact, value in told.items() if value}
    for fact, names in _SLURM.items():
        if fact not in told and (value := next((environment[name] for name in names if environment.get(name)), "")):
            told[fact] = value[:_SLURM_CHARS]
    return told if "job" in told else {}


def masked(name: str, value: str) -> str:
    """The value as it is shown: hidden where the name looks secret, without passwords in URLs and tokens of well-known services."""
    if _SECRET_NAME.search(name):
        return HIDDEN if value else ""
    shown = value[: 2 * VALUE_CHARS]  # the expressions take a microsecond a character
    shown = _TOKENS.sub(HIDDEN, _IN_TEXT.sub(rf"\g<1>{HIDDEN}", _IN_URL.sub(HIDDEN, shown)))
    return shown if len(value) <= VALUE_CHARS else f"{shown[:VALUE_CHARS]} … ({len(value):,} characters)"
